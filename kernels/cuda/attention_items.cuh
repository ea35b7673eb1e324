// Which rows of attention a block computes next, where blocks stay: tiles of kRows of a document
// and head are taken from a counter, so that no multiprocessor waits for another. What comes out
// does not depend on who computes it.
#pragma once

#include <algorithm>

#include "kernels/attention.h"
#include "kernels/cuda/common.cuh"

namespace lt2::cuda {

struct Items {
  const int32_t* cu_seqlens;
  int documents;  // that there is room for
  int tokens, heads;
  int low, high;       // what is wanted of the tokens
  int head_begin = 0;  // heads from this one on
  bool late_first;
  const int* tiles_before = nullptr;  // of each document: goes into its items
  int* taken;                         // 0 when the kernel begins
};

// Rows [first, first + kRows) of a document [begin, end), cut off at its end.
struct alignas(16) Item {
  int begin, end, first, head;  // head < 0: there is nothing left
  int tiles_before;
};

// How many of 0 … n - 1 are `first`, which is true of the first ones only. By a whole warp.
template <class First>
__device__ inline int CountFirst(int n, const First& first) {
  int low = 0, high = n;
  while (low < high) {
    const int step = (high - low + 31) / 32, at = low + step * (threadIdx.x % 32);
    const int count = __popc(__ballot_sync(~0u, at < high && first(at)));
    if (count == 0) return low;
    high = min(high, low + step * count);
    low += step * (count - 1) + 1;
  }
  return low;
}

// One warp of the block asks. Document d has tiles cu_seqlens[d] / kRows + d on, as many as it
// can need; the last of them may be empty.
template <int kRows>
class ItemQueue {
 public:
  __device__ explicit ItemQueue(const Items& items) : items_(items), next_(blockIdx.x) {
    documents_ = CountFirst(items.documents, [&](int d) { return Begin(d) < items.tokens; });
    count_ = (items.tokens / kRows + documents_) * items.heads;
  }
  __device__ Item Next() {
    while (true) {
      const int at = __shfl_sync(~0u, next_, 0);
      if (at >= count_) return {0, 0, 0, -1, 0};
      // Asked for long before the answer is wanted.
      if (threadIdx.x % 32 == 0) next_ = gridDim.x + atomicAdd(items_.taken, 1);
      const int tile = (items_.late_first ? count_ - 1 - at : at) / items_.heads;
      const int d = CountFirst(documents_, [&](int i) { return Begin(i) / kRows + i <= tile; }) - 1;
      const int begin = Begin(d), end = Begin(d + 1);
      const int first = begin + (tile - begin / kRows - d) * kRows;
      const bool wanted = first < min(end, items_.high) && min(first + kRows, end) > items_.low;
      if (wanted) return {begin, end, first, items_.head_begin + at % items_.heads, Before(d)};
    }
  }

 private:
  __device__ int Begin(int document) const { return items_.cu_seqlens[document]; }

  __device__ int Before(int document) const {
    return items_.tiles_before == nullptr ? 0 : items_.tiles_before[document];
  }

  const Items& items_;
  int documents_, count_;
  int next_;  // of the first lane
};

inline TokenRange QueriesOf(const Documents& documents) {
  return {documents.query_begin(), documents.query_end()};
}
inline Items ItemsOf(const Documents& documents, TokenRange wanted, int64_t heads, bool late_first,
                     int* taken) {
  return {.cu_seqlens = Data<int32_t>(documents.cu_seqlens()),
          .documents = static_cast<int>(documents.capacity()),
          .tokens = static_cast<int>(documents.tokens()),
          .heads = static_cast<int>(heads),
          .low = static_cast<int>(wanted.begin),
          .high = static_cast<int>(wanted.end),
          .late_first = late_first,
          .taken = taken};
}

// As many as stay at once, one a multiprocessor.
inline unsigned BlocksOf(const Items& items, int rows) {
  const int64_t most = int64_t{items.tokens / rows + items.documents} * items.heads;
  return static_cast<unsigned>(std::min<int64_t>(Processors(), most));
}

}  // namespace lt2::cuda
