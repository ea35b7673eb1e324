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

// From a run directory the newest checkpoint whose parameters are sound: they are held against
// their hashes as they are read. `dtype`: what they are loaded as. NotFound, DataLoss or
// InvalidArgument naming the path.
absl::StatusOr<LoadedModel> LoadModel(const std::string& path, DType dtype, Device device);

}  // namespace lt2
