// Loops over fixed blocks, spread over threads where that pays, and what blocks write.
//
// Blocks depend on sizes alone and never on the number of threads, so neither do results.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/tensor.h"

namespace lt2::cpu {

// Below this many elements a thread costs more than it gains.
inline constexpr int64_t kThreadingPays = 16 * 1024;
// Elements of an elementwise operator's block: three arrays of it fit the first-level cache.
inline constexpr int64_t kElementBlock = 2048;

// fn(block, begin, end) for each block of [0, count); `elements` is the work in all.
template <class Fn>
void ForEachBlock(int64_t count, int64_t block, int64_t elements, const Fn& fn) {
  const int64_t blocks = (count + block - 1) / block;
#pragma omp parallel for schedule(static) if (elements > kThreadingPays && blocks > 1)
  for (int64_t i = 0; i < blocks; ++i) fn(i, i * block, std::min(count, (i + 1) * block));
}

template <class T>
T* DataOrNull(const Tensor& tensor) {
  return tensor.defined() ? tensor.data<T>() : nullptr;
}

// to = value, or to += value; nothing where `to` is null (nobody wants it).
template <class T>
inline void Store(T* to, const T* value, int64_t count, bool accumulate) {
  if (to == nullptr) return;
  if (accumulate) {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) to[i] += value[i];
  } else {
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) to[i] = value[i];
  }
}

// Sums over rows, for parameter gradients: each block of rows sums into its own line, then the
// lines are added in order, in double. One at a time per thread and type: lines live in its
// scratch.
template <class T>
class RowSums {
 public:
  static constexpr int64_t kMostBlocks = 32;
  // Rows of a block.
  static int64_t Block(int64_t rows) {
    return std::max<int64_t>(8, (rows + kMostBlocks - 1) / kMostBlocks);
  }

  RowSums(int64_t rows, int64_t width)
      : width_(width), blocks_((rows + Block(rows) - 1) / Block(rows)), lines_(Scratch()) {
    if (static_cast<int64_t>(lines_.size()) < blocks_ * width) lines_.resize(blocks_ * width);
  }
  // The line of a block, zeroed.
  T* Line(int64_t block) const {
    T* line = lines_.data() + block * width_;
    std::fill(line, line + width_, T(0));
    return line;
  }
  // to [count] += sums over the lines, each of `columns` columns in turn from `begin` on.
  void AddTo(T* to, int64_t begin, int64_t count, int64_t columns = 1) const {
    for (int64_t i = 0; i < count; ++i, begin += columns) {
      double sum = 0;
      for (int64_t b = 0; b < blocks_; ++b) {
        for (int64_t c = 0; c < columns; ++c) sum += lines_[b * width_ + begin + c];
      }
      to[i] += static_cast<T>(sum);
    }
  }

 private:
  static std::vector<T>& Scratch() {
    thread_local std::vector<T> scratch;
    return scratch;
  }
  int64_t width_, blocks_;
  std::vector<T>& lines_;
};

}  // namespace lt2::cpu
