// How far two checkpoints are from each other, tensor by tensor, whatever meshes wrote them.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoints/reader.h"
#include "checkpoints/scan.h"

namespace lt2 {

struct TensorDifference {
  enum class Kind : uint8_t { kCompared, kOnlyInFirst, kOnlyInSecond, kOtherShape };

  std::string path;  // "param/embed.weight"
  Kind kind = Kind::kCompared;
  // Of both; of one that lacks the tensor, empty.
  std::string first, second;  // "f32 [37, 16]"
  // Of tensors compared. An element differs if its dtype does or its bits do.
  int64_t elements = 0, different = 0;
  double max_abs = 0;   // max |a - b|; NaN if some difference is
  double distance = 0;  // |a - b|₂ / |a|₂; 0 for equal bits; NaN as above

  bool equal() const { return kind == Kind::kCompared && different == 0; }
};

// By path. Each tensor is streamed in bounded memory and checked against its hashes: DataLoss
// naming file and tensor.
absl::StatusOr<std::vector<TensorDifference>> Compare(const Checkpoint& first,
                                                      const Checkpoint& second,
                                                      const ScanOptions& options = {});

}  // namespace lt2
