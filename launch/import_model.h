// A model in safetensors, ours or another program's, as a checkpoint to start from.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoints/scan.h"

namespace lt2 {

struct ImportOptions {
  std::string path;               // what SafetensorsModel::Open takes
  std::string config;             // a file or a preset's name; "": what the files say of their run
  std::vector<std::string> sets;  // over it
};

struct ImportedModel {
  int64_t step = 0;                  // of the run it comes from, 0 where it says none
  int64_t bytes = 0;                 // of the checkpoint's files
  int64_t values = 0;                // parameters
  std::vector<std::string> tensors;  // logical names
  std::vector<std::string> zeros;    // those that other programs do not have
};

// Makes the checkpoint `to`, which must not exist: `train --init-from`, score and generate take it.
// Warns where a config.json beside the tensors contradicts the configuration. Errors as those of
// SafetensorsModel::Open, LoadRunConfig, MatchParams and ImportParams.
absl::StatusOr<ImportedModel> ImportModel(const ImportOptions& options, const std::string& to,
                                          const ScanOptions& scan = {});

}  // namespace lt2
