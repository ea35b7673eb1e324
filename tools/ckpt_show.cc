// lt2 ckpt show: what a checkpoint holds.
#include <iostream>
#include <memory>

#include "absl/strings/str_format.h"
#include "checkpoints/statistics.h"
#include "core/status_macros.h"
#include "core/strings.h"
#include "tools/ckpt.h"

namespace lt2 {
namespace {

struct ShowFlags {
  std::string path;
  bool config = false, stats = false;
};

nlohmann::json ToJson(const StoredTensor& tensor) {
  return {{"name", tensor.path()},
          {"dtype", Name(tensor.dtype)},
          {"shape", std::vector<int64_t>(tensor.shape.begin(), tensor.shape.end())},
          {"bytes", tensor.bytes()},
          {"boxes", tensor.boxes.size()}};
}

nlohmann::json ToJson(const TensorStatistics& statistics) {
  nlohmann::json json = {{"norm", statistics.norm},
                         {"max_abs", statistics.max_abs},
                         {"zeros", statistics.zeros},
                         {"not_finite", statistics.not_finite},
                         {"exponents", nlohmann::json::object()}};
  for (const auto& [exponent, count] : statistics.exponents) {
    json["exponents"][StrCat(exponent)] = count;
  }
  return json;
}

int64_t Parameters(const Manifest& manifest) {
  int64_t parameters = 0;
  for (const StoredTensor& tensor : manifest.tensors) {
    if (tensor.group == "param") parameters += tensor.shape.size();
  }
  return parameters;
}

nlohmann::json ToJson(const Checkpoint& checkpoint,
                      const std::vector<TensorStatistics>& statistics) {
  const CheckpointInfo& info = checkpoint.info();
  const Manifest& manifest = checkpoint.manifest();
  nlohmann::json json = {{"path", checkpoint.directory()},
                         {"step", info.step},
                         {"tokens", info.tokens},
                         {"samples", info.samples},
                         {"mesh", info.mesh},
                         {"tokenizer", info.tokenizer},
                         {"code", info.code},
                         {"bytes", manifest.bytes()},
                         {"config", info.config},
                         {"parameters", Parameters(manifest)},
                         {"tensors", nlohmann::json::array()}};
  for (size_t i = 0; i < manifest.tensors.size(); ++i) {
    json["tensors"].push_back(ToJson(manifest.tensors[i]));
    if (!statistics.empty()) json["tensors"].back().update(ToJson(statistics[i]));
  }
  return json;
}

void PrintSummary(const Checkpoint& checkpoint) {
  const CheckpointInfo& info = checkpoint.info();
  const Manifest& manifest = checkpoint.manifest();
  std::cout << StrCat(checkpoint.directory(), "\nstep        ", info.step, "\ntokens      ",
                      info.tokens, "\nsamples     ", info.samples, "\nparameters  ",
                      Parameters(manifest), "\nsize        ", MiB(manifest.bytes()), " in ",
                      manifest.files.size(), " files\nmesh        ", info.mesh, "\ntokenizer   ",
                      info.tokenizer, " (", info.tokenizer_hash, ")\nwritten by  ", info.code,
                      "\n\n");
}

void PrintTensors(const Manifest& manifest, const std::vector<TensorStatistics>& statistics) {
  if (!statistics.empty()) {
    std::cout << absl::StrFormat("%-52s %-4s %-16s %11s %11s %10s  %s\n", "tensor", "", "shape",
                                 "norm", "max", "not finite", "magnitudes");
  }
  for (size_t i = 0; i < manifest.tensors.size(); ++i) {
    const StoredTensor& tensor = manifest.tensors[i];
    std::cout << absl::StrFormat("%-52s %-4s %-16s", tensor.path(), Name(tensor.dtype),
                                 tensor.shape.ToString());
    if (!statistics.empty()) {
      const TensorStatistics& of = statistics[i];
      const double elements = std::max<double>(1, static_cast<double>(of.elements));
      std::cout << absl::StrFormat(" %11.4e %11.4e %9.4f%%  %s", of.norm, of.max_abs,
                                   100 * static_cast<double>(of.not_finite) / elements,
                                   of.Histogram());
    }
    std::cout << "\n";
  }
}

absl::Status Show(const ShowFlags& flags, VerbOutput& output) {
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, OpenCheckpoint(flags.path));
  std::vector<TensorStatistics> statistics;
  if (flags.stats) {
    ProgressLine progress("reading");
    ASSIGN_OR_RETURN(statistics, StatisticsOf(checkpoint, ShowingProgress(progress)));
    progress.End();
  }
  output.result = ToJson(checkpoint, statistics);
  if (output.json) return absl::OkStatus();
  if (flags.config) {
    std::cout << checkpoint.info().config;
    return absl::OkStatus();
  }
  PrintSummary(checkpoint);
  PrintTensors(checkpoint.manifest(), statistics);
  return absl::OkStatus();
}

}  // namespace

CkptSubverb AddCkptShow(CLI::App& ckpt) {
  CLI::App* app = AddSubverb(
      ckpt, "show", "Shows what a checkpoint holds (the newest sound one of a run).",
      "{lt2} train lt2-tiny --max-steps 2 --run-dir runs/ckpt && {lt2} ckpt show runs/ckpt "
      "--stats");
  auto flags = std::make_shared<ShowFlags>();
  app->add_option("path", flags->path, kCheckpointArgument)->required();
  app->add_flag("--config", flags->config, "print the run's configuration instead");
  app->add_flag("--stats", flags->stats,
                "read every tensor: its Euclidean norm, largest magnitude, share of infinities\n"
                "and NaNs, and how many elements lie between powers of two");
  return {app, [=](VerbOutput& output) { return Show(*flags, output); }};
}

}  // namespace lt2
