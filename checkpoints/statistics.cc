#include "checkpoints/statistics.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "checkpoints/tensor_stream.h"
#include "core/status_macros.h"
#include "core/strings.h"

namespace lt2 {
namespace {

// Counts of a stretch of elements by exponent, from that of the smallest double on.
class ExponentCounts {
 public:
  void Add(double magnitude) { ++counts_[std::ilogb(magnitude) - kLeast]; }
  std::map<int, int64_t> NonEmpty() const {
    std::map<int, int64_t> found;
    for (size_t i = 0; i < counts_.size(); ++i) {
      if (counts_[i] > 0) found.emplace(static_cast<int>(i) + kLeast, counts_[i]);
    }
    return found;
  }

 private:
  static constexpr int kLeast = -1074, kLargest = 1023;
  std::array<int64_t, kLargest - kLeast + 1> counts_{};
};

absl::StatusOr<TensorStatistics> StatisticsOf(const Checkpoint& checkpoint,
                                              const StoredTensor& tensor) {
  TensorStatistics statistics{.elements = tensor.shape.size()};
  ExponentCounts exponents;
  double squares = 0;
  TensorStream stream(checkpoint, tensor, RowsAtATime(tensor));
  while (!stream.done()) {
    ASSIGN_OR_RETURN(const TensorRows rows, stream.Next());
    for (const double value : rows.ToDoubles()) {
      const double magnitude = std::abs(value);
      if (!std::isfinite(value)) {
        ++statistics.not_finite;
      } else if (magnitude == 0) {
        ++statistics.zeros;
      } else {
        squares += value * value;
        statistics.max_abs = std::max(statistics.max_abs, magnitude);
        exponents.Add(magnitude);
      }
    }
  }
  statistics.norm = std::sqrt(squares);
  statistics.exponents = exponents.NonEmpty();
  return statistics;
}

}  // namespace

std::string TensorStatistics::Histogram(int columns) const {
  if (exponents.empty()) return "";
  static constexpr const char* kBars[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  const int last = exponents.rbegin()->first;
  const int first = std::max(exponents.begin()->first, last - columns + 1);
  std::vector<int64_t> counts(last - first + 1);
  for (const auto& [exponent, count] : exponents)
    counts[std::max(exponent, first) - first] += count;
  const int64_t most = *std::max_element(counts.begin(), counts.end());
  std::string line = StrCat("2^", first, " ");
  for (const int64_t count : counts) line += kBars[(8 * count + most - 1) / most];
  return StrCat(line, " 2^", last + 1);
}

absl::StatusOr<std::vector<TensorStatistics>> StatisticsOf(const Checkpoint& checkpoint,
                                                           const ScanOptions& options) {
  const std::vector<StoredTensor>& tensors = checkpoint.manifest().tensors;
  std::vector<TensorStatistics> statistics(tensors.size());
  std::vector<int64_t> bytes;
  for (const StoredTensor& tensor : tensors) bytes.push_back(tensor.bytes());
  RETURN_IF_ERROR(ForEachItem(bytes, options, [&](size_t i) -> absl::Status {
    ASSIGN_OR_RETURN(statistics[i], StatisticsOf(checkpoint, tensors[i]));
    return absl::OkStatus();
  }));
  return statistics;
}

}  // namespace lt2
