// Norms and magnitudes of a checkpoint's tensors.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoints/reader.h"
#include "checkpoints/scan.h"

namespace lt2 {

struct TensorStatistics {
  int64_t elements = 0, zeros = 0;
  int64_t not_finite = 0;  // infinities and NaNs, which count in nothing below
  double norm = 0;         // Euclidean
  double max_abs = 0;
  std::map<int, int64_t> exponents;  // e -> how many have 2^e <= |x| < 2^(e+1)

  // "2^-9 ▁▂▅█▃ 2^-4": one column an exponent, at most `columns`; what is smaller than these is in
  // the first one. The bounds are those of the first and the last column. "" without a number.
  std::string Histogram(int columns = 16) const;
};

// Of every tensor of the manifest, in its order. Each is streamed in bounded memory and checked
// against its hashes: DataLoss naming file and tensor.
absl::StatusOr<std::vector<TensorStatistics>> StatisticsOf(const Checkpoint& checkpoint,
                                                           const ScanOptions& options = {});

}  // namespace lt2
