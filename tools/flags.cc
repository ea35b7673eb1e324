#include "tools/flags.h"

#include <cmath>
#include <filesystem>

#include "absl/strings/numbers.h"
#include "checkpoints/agreement.h"
#include "core/hash.h"
#include "core/log.h"
#include "core/status_macros.h"
#include "core/strings.h"
#include "launch/threads.h"
#include "parallel/mpi_communicator.h"

namespace lt2 {

absl::StatusOr<RunConfig> ConfigFlags::LoadOnAllRanks(VerbOutput& output) const {
  absl::StatusOr<RunConfig> config = Load();
  ASSIGN_OR_RETURN(output.world, StartWorld());
  Communicator& world = *output.world;
  SetLogRank(world.rank(), world.size(), world.host());
  UseThreadsFor(world);
  RETURN_IF_ERROR(Agree(world, config.status()));
  return config;
}

absl::Status SameOnAllRanks(const std::string& text, Communicator& world) {
  const std::string hash = Hash128(std::as_bytes(std::span(text)));
  const std::vector<std::string> all = world.GatherStrings(StrCat(hash, " ", world.host()));
  for (size_t rank = 1; rank < all.size(); ++rank) {
    const auto hash_of = [&](size_t r) { return all[r].substr(0, hash.size()); };
    if (hash_of(rank) == hash_of(0)) continue;
    return absl::InvalidArgumentError(
        StrCat("rank ", rank, " (", all[rank].substr(hash.size() + 1),
               ") runs another configuration than rank 0; start all ranks with the same command "
               "and the same files"));
  }
  return absl::OkStatus();
}

void AddConfigFlags(CLI::App& app, ConfigFlags* flags) {
  app.add_option("config", flags->config, "a TOML file, or a preset's name")->required();
  app.add_option("--set", flags->sets,
                 "section.key=value, the value in TOML or a bare word; may be repeated, the last "
                 "one wins")
      ->allow_extra_args(false);
}

CLI::Validator WholeNumber(int64_t least, int64_t most) {
  const auto check = [=](std::string& text) {
    int64_t value = 0;
    if (absl::SimpleAtoi(text, &value) && value >= least && value <= most) return std::string();
    const bool open = most == std::numeric_limits<int64_t>::max();
    return StrCat("wants a whole number ",
                  open ? StrCat("of at least ", least) : StrCat("from ", least, " to ", most),
                  ", got ", text);
  };
  return CLI::Validator(check, "");
}

CLI::Validator NumberFrom(double least) {
  const auto check = [=](std::string& text) {
    double value = 0;
    if (absl::SimpleAtod(text, &value) && value >= least && std::isfinite(value)) {
      return std::string();
    }
    return StrCat("wants a number of at least ", least, ", got ", text);
  };
  return CLI::Validator(check, "");
}

CLI::Validator Share() {
  const auto check = [](std::string& text) {
    double value = 0;
    if (absl::SimpleAtod(text, &value) && value > 0 && value <= 1) return std::string();
    return StrCat("wants a number above 0 and up to 1, got ", text);
  };
  return CLI::Validator(check, "");
}

CLI::Validator NewFile() {
  const auto check = [](std::string& text) {
    const std::filesystem::path path(text), folder = path.parent_path();
    std::error_code error;
    if (!folder.empty() && !std::filesystem::is_directory(folder, error)) {
      return StrCat(folder.string(), " is no folder: make it first");
    }
    return std::filesystem::is_directory(path, error) ? StrCat(text, " is a folder") : "";
  };
  return CLI::Validator(check, "");
}

}  // namespace lt2
