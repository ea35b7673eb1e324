// lt2 ckpt: lists, shows and verifies checkpoints.
#include <iostream>
#include <memory>

#include "absl/strings/str_format.h"
#include "checkpoints/catalog.h"
#include "checkpoints/manifest.h"
#include "checkpoints/verify.h"
#include "core/log.h"
#include "core/status_macros.h"
#include "core/strings.h"
#include "tools/verb.h"

namespace lt2 {
namespace {

std::string MiB(int64_t bytes) {
  return absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / (1 << 20));
}

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
  ASSIGN_OR_RETURN(const std::vector<CheckpointSummary> checkpoints, ListCheckpoints(path, verify));
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

nlohmann::json ToJson(const StoredTensor& tensor) {
  return {{"name", tensor.path()},
          {"dtype", Name(tensor.dtype)},
          {"shape", std::vector<int64_t>(tensor.shape.begin(), tensor.shape.end())},
          {"bytes", tensor.bytes()},
          {"boxes", tensor.boxes.size()}};
}

absl::Status Show(const std::string& path, bool config, VerbOutput& output) {
  ASSIGN_OR_RETURN(const std::string directory, ResolveCheckpoint(path, LogWarn));
  ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(directory));
  const CheckpointInfo& info = manifest.info;
  int64_t parameters = 0;
  output.result = {{"path", directory},     {"step", info.step},
                   {"tokens", info.tokens}, {"samples", info.samples},
                   {"mesh", info.mesh},     {"tokenizer", info.tokenizer},
                   {"code", info.code},     {"bytes", manifest.bytes()},
                   {"config", info.config}, {"tensors", nlohmann::json::array()}};
  for (const StoredTensor& tensor : manifest.tensors) {
    output.result["tensors"].push_back(ToJson(tensor));
    if (tensor.group == "param") parameters += tensor.shape.size();
  }
  output.result["parameters"] = parameters;
  if (output.json) return absl::OkStatus();
  if (config) {
    std::cout << info.config;
    return absl::OkStatus();
  }
  std::cout << StrCat(directory, "\nstep        ", info.step, "\ntokens      ", info.tokens,
                      "\nsamples     ", info.samples, "\nparameters  ", parameters,
                      "\nsize        ", MiB(manifest.bytes()), " in ", manifest.files.size(),
                      " files\nmesh        ", info.mesh, "\ntokenizer   ", info.tokenizer, " (",
                      info.tokenizer_hash, ")\nwritten by  ", info.code, "\n\n");
  for (const StoredTensor& tensor : manifest.tensors) {
    std::cout << absl::StrFormat("%-52s %-4s %s\n", tensor.path(), Name(tensor.dtype),
                                 tensor.shape.ToString());
  }
  return absl::OkStatus();
}

}  // namespace

Verb CkptVerb() {
  // In a fresh checkout there is no checkpoint yet: the examples make one.
  const std::string make = "{lt2} train lt2-tiny --max-steps 2 --run-dir runs/ckpt && {lt2} ckpt ";
  return {.name = "ckpt",
          .summary = "Lists, shows and verifies checkpoints; no GPU is needed.",
          .example = make + "ls runs/ckpt",
          .add = [=](CLI::App& app) -> VerbBody {
            auto path = std::make_shared<std::string>();
            auto config = std::make_shared<bool>(false);
            const char* what = "a run directory, its checkpoints folder, or one checkpoint";
            CLI::App* ls =
                AddSubverb(app, "ls", "Lists checkpoints, oldest first.", make + "ls runs/ckpt");
            ls->add_option("path", *path, what)->required();
            CLI::App* show = AddSubverb(
                app, "show", "Shows what a checkpoint holds (the newest sound one of a run).",
                make + "show runs/ckpt");
            show->add_option("path", *path, what)->required();
            show->add_flag("--config", *config, "print the run's configuration instead");
            CLI::App* verify =
                AddSubverb(app, "verify", "Reads every byte and names what is damaged: exit 3.",
                           make + "verify runs/ckpt");
            verify->add_option("path", *path, what)->required();
            return [=](VerbOutput& output) {
              if (show->parsed()) return Show(*path, *config, output);
              return List(*path, verify->parsed(), output);
            };
          }};
}

}  // namespace lt2
