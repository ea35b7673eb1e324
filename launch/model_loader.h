// A model for inference from what a user names: a checkpoint, or a run directory.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "data/tokenizer.h"
#include "launch/run_config.h"
#include "model/language_model.h"

namespace lt2 {

struct LoadedModel {
  std::string checkpoint;  // the directory that was loaded
  int64_t step = 0;
  RunConfig config;  // the run's, as saved
  DType dtype = DType::kF32;
  std::unique_ptr<LanguageModel> model;  // parameters bound on the device
};

// `dtype`: what the parameters are loaded as. NotFound, DataLoss or InvalidArgument naming the
// path.
absl::StatusOr<LoadedModel> LoadModel(const std::string& path, DType dtype, Device device);

}  // namespace lt2
