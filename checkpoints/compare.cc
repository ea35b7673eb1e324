#include "checkpoints/compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "checkpoints/tensor_stream.h"
#include "core/status_macros.h"
#include "core/strings.h"

namespace lt2 {
namespace {

using Kind = TensorDifference::Kind;

struct Pair {
  const StoredTensor* first = nullptr;
  const StoredTensor* second = nullptr;
};

std::string Describe(const StoredTensor* tensor) {
  return tensor == nullptr ? "" : StrCat(Name(tensor->dtype), " ", tensor->shape.ToString());
}

TensorDifference Outline(const std::string& path, const Pair& pair) {
  TensorDifference difference{
      .path = path, .first = Describe(pair.first), .second = Describe(pair.second)};
  if (pair.second == nullptr) {
    difference.kind = Kind::kOnlyInFirst;
  } else if (pair.first == nullptr) {
    difference.kind = Kind::kOnlyInSecond;
  } else if (pair.first->shape != pair.second->shape) {
    difference.kind = Kind::kOtherShape;
  } else {
    difference.elements = pair.first->shape.size();
  }
  return difference;
}

// Sums over a tensor's elements, in their order.
struct Sums {
  double first = 0, apart = 0;  // Σ a², Σ (a - b)²
  double max_abs = 0;
  int64_t different = 0;

  void Add(const TensorRows& a, const TensorRows& b) {
    const std::vector<double> x = a.ToDoubles(), y = b.ToDoubles();
    const bool same_type = a.dtype == b.dtype;
    const int64_t size = SizeOf(a.dtype);
    for (size_t i = 0; i < x.size(); ++i) {
      first += x[i] * x[i];
      if (same_type && std::memcmp(&a.bytes[i * size], &b.bytes[i * size], size) == 0) continue;
      ++different;
      const double apart_here = x[i] == y[i] ? 0 : std::abs(x[i] - y[i]);
      apart += apart_here * apart_here;
      // A NaN, once seen, stays.
      if (!(apart_here <= max_abs) && !std::isnan(max_abs)) max_abs = apart_here;
    }
  }
};

absl::Status CompareValues(const Checkpoint& first, const Checkpoint& second, const Pair& pair,
                           TensorDifference& difference) {
  const int64_t rows = std::min(RowsAtATime(*pair.first), RowsAtATime(*pair.second));
  TensorStream a(first, *pair.first, rows), b(second, *pair.second, rows);
  Sums sums;
  while (!a.done()) {
    ASSIGN_OR_RETURN(const TensorRows a_rows, a.Next());
    ASSIGN_OR_RETURN(const TensorRows b_rows, b.Next());
    sums.Add(a_rows, b_rows);
  }
  difference.different = sums.different;
  difference.max_abs = sums.max_abs;
  difference.distance = sums.apart == 0 ? 0 : std::sqrt(sums.apart / sums.first);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<TensorDifference>> Compare(const Checkpoint& first,
                                                      const Checkpoint& second,
                                                      const ScanOptions& options) {
  std::map<std::string, Pair> pairs;
  for (const StoredTensor& tensor : first.manifest().tensors) pairs[tensor.path()].first = &tensor;
  for (const StoredTensor& tensor : second.manifest().tensors) {
    pairs[tensor.path()].second = &tensor;
  }
  std::vector<TensorDifference> differences;
  std::vector<Pair> tensors;
  std::vector<int64_t> bytes;
  for (const auto& [path, pair] : pairs) {
    differences.push_back(Outline(path, pair));
    tensors.push_back(pair);
    const bool read = differences.back().kind == Kind::kCompared;
    bytes.push_back(read ? pair.first->bytes() + pair.second->bytes() : 0);
  }
  RETURN_IF_ERROR(ForEachItem(bytes, options, [&](size_t i) {
    if (differences[i].kind != Kind::kCompared) return absl::OkStatus();
    return CompareValues(first, second, tensors[i], differences[i]);
  }));
  return differences;
}

}  // namespace lt2
