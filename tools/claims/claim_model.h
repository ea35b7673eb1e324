// Models to measure LT2's claims on: of random weights, or a checkpoint's.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/language_model.h"

namespace lt2 {

// One row of a table: a name, and a model in float64 on the CPU.
struct ClaimModel {
  std::string name;
  std::unique_ptr<LanguageModel> model;
};

// `toml`: what [model] holds. Weights are those a run of this seed starts from.
ClaimModel RandomClaimModel(const std::string& name, const std::string& toml, uint64_t seed);
// A checkpoint or a run directory.
absl::StatusOr<ClaimModel> LoadClaimModel(const std::string& path);

// Whether a table has a line for so many loops: powers of two, and the last.
inline bool IsShown(int64_t loops, int64_t last) {
  return (loops & (loops - 1)) == 0 || loops == last;
}

// rows × length bytes of the sample text, from places that the seed chooses: the rows are one after
// another.
absl::StatusOr<std::vector<int32_t>> SampleBytes(int64_t rows, int64_t length, uint64_t seed);

}  // namespace lt2
