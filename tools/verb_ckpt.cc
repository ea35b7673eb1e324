// lt2 ckpt: lists, shows and verifies checkpoints, and knows the other sub-verbs.
#include <iostream>
#include <memory>

#include "absl/strings/str_format.h"
#include "checkpoints/catalog.h"
#include "core/log.h"
#include "core/status_macros.h"
#include "core/strings.h"
#include "tools/ckpt.h"

namespace lt2 {
namespace {

// What a summary's soundness stands for: every byte was read, or only the manifest, the files'
// sizes and their frames.
const char* SoundnessName(bool verified) { return verified ? "sound" : "opens"; }

nlohmann::json ToJson(const CheckpointSummary& checkpoint, bool verified) {
  nlohmann::json json = {{"path", checkpoint.directory.path},
                         {"step", checkpoint.directory.step},
                         {"tokens", checkpoint.info.tokens},
                         {"mesh", checkpoint.info.mesh},
                         {"tensors", checkpoint.tensors},
                         {"bytes", checkpoint.bytes},
                         {SoundnessName(verified), checkpoint.soundness.ok()}};
  if (!checkpoint.soundness.ok()) json["error"] = std::string(checkpoint.soundness.message());
  return json;
}

void Print(const std::vector<CheckpointSummary>& checkpoints, bool verified) {
  std::cout << absl::StrFormat("%10s %14s %12s %6s  %-30s %s\n", "step", "tokens", "size",
                               SoundnessName(verified), "mesh", "path");
  for (const CheckpointSummary& c : checkpoints) {
    std::cout << absl::StrFormat("%10d %14d %12s %6s  %-30s %s\n", c.directory.step, c.info.tokens,
                                 MiB(c.bytes), c.soundness.ok() ? "yes" : "NO", c.info.mesh,
                                 c.directory.path);
  }
}

// Lists what is at `path`; with `verify` reads every byte, and damage is an error.
absl::Status List(const std::string& path, bool verify, VerbOutput& output) {
  ProgressLine progress("verifying");
  ASSIGN_OR_RETURN(const std::vector<CheckpointSummary> checkpoints,
                   ListCheckpoints(path, verify, ShowingProgress(progress)));
  progress.End();
  output.result["checkpoints"] = nlohmann::json::array();
  std::string damages;
  for (const CheckpointSummary& checkpoint : checkpoints) {
    output.result["checkpoints"].push_back(ToJson(checkpoint, verify));
    if (!checkpoint.soundness.ok()) {
      StrAppend(&damages, damages.empty() ? "" : "\n", std::string(checkpoint.soundness.message()));
    }
  }
  if (!output.json) Print(checkpoints, verify);
  if (damages.empty()) return absl::OkStatus();
  if (verify) return absl::DataLossError(damages);
  LogWarn(damages);
  return absl::OkStatus();
}

}  // namespace

std::string MiB(int64_t bytes) {
  return absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / (1 << 20));
}

absl::StatusOr<Checkpoint> OpenCheckpoint(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string directory, ResolveCheckpoint(path, LogWarn));
  return Checkpoint::Open(directory);
}

ScanOptions ShowingProgress(ProgressLine& line) {
  return {.progress = [&line](int64_t done, int64_t total) {
    line.Show(static_cast<double>(done), static_cast<double>(total));
  }};
}

Verb CkptVerb() {
  // In a fresh checkout there is no checkpoint yet: the examples make one.
  const std::string make = "{lt2} train lt2-tiny --max-steps 2 --run-dir runs/ckpt && {lt2} ckpt ";
  return {.name = "ckpt",
          .summary =
              "Lists, shows, verifies, compares, reshards, imports and exports checkpoints; no "
              "GPU is needed.",
          .example = make + "ls runs/ckpt",
          .add = [=](CLI::App& app) -> VerbBody {
            auto path = std::make_shared<std::string>();
            CLI::App* ls =
                AddSubverb(app, "ls", "Lists checkpoints, oldest first.", make + "ls runs/ckpt");
            ls->add_option("path", *path, kCheckpointArgument)->required();
            CLI::App* verify =
                AddSubverb(app, "verify", "Reads every byte and names what is damaged: exit 3.",
                           make + "verify runs/ckpt");
            verify->add_option("path", *path, kCheckpointArgument)->required();
            const std::vector<CkptSubverb> others = {AddCkptShow(app), AddCkptDiff(app),
                                                     AddCkptReshard(app), AddCkptImport(app),
                                                     AddCkptExport(app)};
            return [=](VerbOutput& output) {
              for (const CkptSubverb& other : others) {
                if (other.app->parsed()) return other.body(output);
              }
              return List(*path, verify->parsed(), output);
            };
          }};
}

}  // namespace lt2
