// Flags that several verbs share, and checks of their values.
#pragma once

#include <CLI/CLI.hpp>
#include <limits>
#include <string>
#include <vector>

#include "launch/run_config.h"
#include "tools/verb.h"

namespace lt2 {

struct ConfigFlags {
  std::string config;
  std::vector<std::string> sets;

  absl::StatusOr<RunConfig> Load() const { return LoadRunConfig(config, sets); }
  // For a verb that runs on several ranks: starts the world (output.world), and loads. The first
  // error of any rank comes back on all. Collective.
  absl::StatusOr<RunConfig> LoadOnAllRanks(VerbOutput& output) const;
};

// InvalidArgument on all ranks, naming the first whose text differs from rank 0's: what the run
// depends on. Collective.
absl::Status SameOnAllRanks(const std::string& text, Communicator& world);

// CONFIG and --set; `flags` must outlive the parse.
void AddConfigFlags(CLI::App& app, ConfigFlags* flags);

// Checks of a flag's value that say in plain words what is allowed: whole numbers from `least` to
// `most` (the largest goes unsaid), finite numbers from `least` on, and numbers above 0 up to 1.
CLI::Validator WholeNumber(int64_t least, int64_t most = std::numeric_limits<int64_t>::max());
CLI::Validator NumberFrom(double least);
CLI::Validator Share();
// A file that is to be written, in a folder that is there.
CLI::Validator NewFile();

}  // namespace lt2
