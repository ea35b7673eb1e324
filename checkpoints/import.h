// A checkpoint of parameters alone from a model in safetensors.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoints/manifest.h"
#include "checkpoints/safetensors_model.h"
#include "checkpoints/scan.h"

namespace lt2 {

// A parameter and where its values are, all of them one after another.
struct ImportedParam {
  std::string name;  // logical
  Shape shape;
  std::string from;   // the tensor over there; "": zeros
  int64_t begin = 0;  // index of the first element in it
};

// Makes the checkpoint `to`, which must not exist: one shard, float32 from F32, BF16 and F16,
// float64 from F64, all exactly. Reads the bytes of these parameters alone, each once, in bounded
// memory; whole or absent. Returns the bytes of its files. InvalidArgument if `to` exists or a
// tensor holds no floating-point numbers; DataLoss if a file is too short.
absl::StatusOr<int64_t> ImportParams(const SafetensorsModel& model,
                                     const std::vector<ImportedParam>& params,
                                     const CheckpointInfo& info, const std::string& to,
                                     const ScanOptions& options = {});

}  // namespace lt2
