#include "launch/model_loader.h"

#include "checkpoints/catalog.h"
#include "checkpoints/reader.h"
#include "core/log.h"
#include "core/status_macros.h"
#include "model/size_limits.h"

namespace lt2 {

namespace {

absl::StatusOr<LoadedModel> LoadFrom(const std::string& path, DType dtype, Device device) {
  LoadedModel loaded{.checkpoint = path, .dtype = dtype};
  ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::Open(path));
  loaded.step = checkpoint.info().step;
  ASSIGN_OR_RETURN(loaded.config, ParseRunConfig(checkpoint.info().config,
                                                 loaded.checkpoint + "/" + kManifestFile));
  RETURN_IF_ERROR(CheckSizes(loaded.config.model, device.backend, {}));
  loaded.model = std::make_unique<LanguageModel>(loaded.config.model);
  std::vector<TensorPiece> pieces;
  for (Param* param : loaded.model->params().all()) {
    param->BindValue(Tensor::Empty(param->spec.shape, dtype, device));
    pieces.push_back({.group = "param",
                      .name = param->spec.name,
                      .shape = param->spec.shape,
                      .box = Box::Whole(param->spec.shape),
                      .tensor = param->value});
  }
  RETURN_IF_ERROR(checkpoint.Load(pieces, {.convert = true}));
  return loaded;
}

}  // namespace

absl::StatusOr<LoadedModel> LoadModel(const std::string& path, DType dtype, Device device) {
  ASSIGN_OR_RETURN(const std::vector<std::string> paths, CheckpointsAt(path));
  return FirstSound(paths, "name another one", LogWarn,
                    [&](const std::string& at) { return LoadFrom(at, dtype, device); });
}

}  // namespace lt2
