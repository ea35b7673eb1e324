// lt2 ckpt export: a checkpoint's parameters as safetensors.
#include <iostream>
#include <memory>

#include "checkpoints/export.h"
#include "core/status_macros.h"
#include "core/strings.h"
#include "tools/ckpt.h"
#include "tools/flags.h"

namespace lt2 {
namespace {

struct ExportFlags {
  std::string from, to, dtype = "stored";
  int64_t shard_mib = 0;
};

std::optional<FloatType> TypeOf(const std::string& dtype) {
  if (dtype == "fp32") return FloatType::kF32;
  if (dtype == "bf16") return FloatType::kBF16;
  return std::nullopt;
}

absl::Status Run(const ExportFlags& flags, VerbOutput& output) {
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, OpenCheckpoint(flags.from));
  ProgressLine progress("exporting");
  const ExportOptions options{.type = TypeOf(flags.dtype), .file_bytes = flags.shard_mib << 20};
  ASSIGN_OR_RETURN(const ExportedModel model,
                   ExportSafetensors(checkpoint, flags.to, options, ShowingProgress(progress)));
  progress.End();
  output.result = {{"from", checkpoint.directory()}, {"path", flags.to},
                   {"step", checkpoint.info().step}, {"tensors", model.tensors},
                   {"parameters", model.values},     {"bytes", model.bytes},
                   {"files", model.files},           {"dtype", flags.dtype}};
  if (!output.json) {
    std::cout << StrCat("wrote ", flags.to, ": ", model.tensors, " tensors of step ",
                        checkpoint.info().step, ", ", MiB(model.bytes), " in ", model.files,
                        model.files == 1 ? " file\n" : " files\n");
  }
  return absl::OkStatus();
}

}  // namespace

CkptSubverb AddCkptExport(CLI::App& ckpt) {
  CLI::App* app = AddSubverb(
      ckpt, "export",
      "Writes a checkpoint's parameters as safetensors under their logical names, whatever mesh\n"
      "saved them, and the run's config.toml beside: OUT/model.safetensors, or several files and\n"
      "model.safetensors.index.json. `ckpt import` reads them again, bit for bit.",
      "{lt2} train lt2-tiny --max-steps 2 --run-dir runs/ckpt && {lt2} ckpt export runs/ckpt "
      "runs/exported --dtype bf16");
  auto flags = std::make_shared<ExportFlags>();
  app->add_option("in", flags->from, kCheckpointArgument)->required();
  app->add_option("out", flags->to, "the folder to make, one that does not exist")->required();
  app->add_option(
         "--dtype", flags->dtype,
         "of the values: fp32, bf16, or stored: what was trained, fp32 but for runs in fp64")
      ->check(CLI::IsMember({"stored", "fp32", "bf16"}));
  app->add_option("--shard-mib", flags->shard_mib,
                  "tensors of at most so many MiB a file, a larger one alone; 0: one file")
      ->check(WholeNumber(0, int64_t{1} << 40));
  return {app, [=](VerbOutput& output) { return Run(*flags, output); }};
}

}  // namespace lt2
