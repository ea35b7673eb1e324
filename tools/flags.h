// Flags that several verbs share.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "launch/run_config.h"

namespace lt2 {

struct ConfigFlags {
  std::string config;
  std::vector<std::string> sets;

  absl::StatusOr<RunConfig> Load() const { return LoadRunConfig(config, sets); }
};

// CONFIG and --set; `flags` must outlive the parse.
inline void AddConfigFlags(CLI::App& app, ConfigFlags* flags) {
  app.add_option("config", flags->config, "a TOML file, or a preset's name")->required();
  app.add_option("--set", flags->sets,
                 "section.key=value, the value in TOML or a bare word; may be repeated, the last "
                 "one wins")
      ->allow_extra_args(false);
}

}  // namespace lt2
