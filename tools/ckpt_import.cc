// lt2 ckpt import: a model in safetensors as a checkpoint.
#include <iostream>
#include <memory>

#include "absl/strings/str_join.h"
#include "core/status_macros.h"
#include "core/strings.h"
#include "launch/import_model.h"
#include "tools/ckpt.h"

namespace lt2 {
namespace {

absl::Status Run(const ImportOptions& options, const std::string& to, VerbOutput& output) {
  ProgressLine progress("importing");
  ASSIGN_OR_RETURN(const ImportedModel model, ImportModel(options, to, ShowingProgress(progress)));
  progress.End();
  output.result = {{"from", options.path},       {"path", to},
                   {"step", model.step},         {"tensors", model.tensors.size()},
                   {"parameters", model.values}, {"bytes", model.bytes},
                   {"zeros", model.zeros}};
  if (output.json) return absl::OkStatus();
  std::cout << StrCat("wrote ", to, ": ", model.values, " parameters in ", model.tensors.size(),
                      " tensors\n");
  if (!model.zeros.empty()) {
    std::cout << StrCat("zeros, for they are not in ", options.path, ": ",
                        absl::StrJoin(model.zeros, ", "), "\n");
  }
  return absl::OkStatus();
}

}  // namespace

CkptSubverb AddCkptImport(CLI::App& ckpt) {
  CLI::App* app = AddSubverb(
      ckpt, "import",
      "Makes a checkpoint of a model in safetensors, for `train --init-from`, `score` and\n"
      "`generate`. What `ckpt export` wrote brings its configuration along. Models of other\n"
      "programs need one whose [model] describes them; names as in Llama, Qwen and Ouro\n"
      "(model.layers.0.self_attn.q_proj.weight) or flash-linear-attention\n"
      "(model.layers.0.attn.q_proj.weight), rope_style = \"half\". What is missing, left over or "
      "of\n"
      "another shape is listed: exit 2.",
      "{lt2} train lt2-tiny --max-steps 2 --run-dir runs/ckpt && {lt2} ckpt export runs/ckpt "
      "runs/model && {lt2} ckpt import runs/model runs/imported");
  auto options = std::make_shared<ImportOptions>();
  auto to = std::make_shared<std::string>();
  app->add_option("in", options->path,
                  "a .safetensors file, an .index.json, or a folder with model.safetensors or "
                  "model.safetensors.index.json")
      ->required();
  app->add_option("out", *to, "the checkpoint to make, a folder that does not exist")->required();
  app->add_option("--config", options->config,
                  "a TOML file, or a preset's name, instead of what the files say of their run");
  app->add_option("--set", options->sets,
                  "section.key=value over the configuration; may be repeated, the last one wins")
      ->allow_extra_args(false);
  return {app, [=](VerbOutput& output) { return Run(*options, *to, output); }};
}

}  // namespace lt2
