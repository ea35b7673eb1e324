// The k largest of n scores, found by a block of threads.
#pragma once

#include "kernels/cuda/common.cuh"

namespace lt2::cuda {

// An order of unsigned integers that is the scores': a NaN is the least of all, zeros are equal.
__device__ inline uint64_t OrderOf(double score) {
  if (isnan(score)) score = -INFINITY;
  if (score == 0) score = 0;
  const auto bits = static_cast<uint64_t>(__double_as_longlong(score));
  return bits >> 63 ? ~bits : bits | uint64_t{1} << 63;
}

// The k-th largest, digit by digit, and how many that equal it are among the k.
struct Cut {
  uint64_t least;
  int64_t equal;
};

template <int kThreads>
__device__ inline Cut FindCut(const double* score, int64_t n, int64_t k) {
  __shared__ int count[256];
  __shared__ int chosen, above;
  Cut cut{0, k};
  for (int shift = 56; shift >= 0; shift -= 8) {
    for (int digit = threadIdx.x; digit < 256; digit += kThreads) count[digit] = 0;
    __syncthreads();
    for (int64_t i = threadIdx.x; i < n; i += kThreads) {
      const uint64_t key = OrderOf(score[i]);
      if (shift < 56 && (key ^ cut.least) >> (shift + 8) != 0) continue;
      const int digit = static_cast<int>(key >> shift & 255);
      // One of those that saw the same digit adds for all.
      const unsigned same = __match_any_sync(__activemask(), digit);
      if (threadIdx.x % 32 == __ffs(same) - 1) atomicAdd(count + digit, __popc(same));
    }
    __syncthreads();
    if (threadIdx.x < 32) {  // a lane has eight digits
      const int first = 8 * threadIdx.x;
      int own = 0;
      for (int d = 0; d < 8; ++d) own += count[first + d];
      int upper = own;  // with those of the lanes behind
      for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_down_sync(~0u, upper, step);
        if (threadIdx.x + step < 32) upper += other;
      }
      int before = upper - own;
      if (before < cut.equal && cut.equal <= upper) {
        int digit = first + 7;
        while (before + count[digit] < cut.equal) before += count[digit--];
        chosen = digit;
        above = before;
      }
    }
    __syncthreads();
    cut.least |= static_cast<uint64_t>(chosen) << shift;
    cut.equal -= above;
  }
  return cut;
}

// Their positions in ascending order, then -1 up to k. Of equal scores the lower position comes
// first. All kThreads threads of the block call, after the scores have been written.
template <int kThreads>
__device__ inline void SelectTop(const double* score, int64_t n, int64_t k, int32_t* to) {
  constexpr int kWarps = kThreads / 32;
  if (n <= k) {
    for (int64_t i = threadIdx.x; i < k; i += kThreads) to[i] = i < n ? static_cast<int>(i) : -1;
    return;
  }
  __shared__ int greater_of[kWarps], equal_of[kWarps];
  const Cut cut = FindCut<kThreads>(score, n, k);
  const int warp = threadIdx.x / 32;
  const unsigned before_me = (1u << threadIdx.x % 32) - 1;
  int64_t greater = 0, equal = 0;  // before the tile, then before the thread
  for (int64_t first = 0; first < n; first += kThreads) {
    const int64_t i = first + threadIdx.x;
    const uint64_t key = i < n ? OrderOf(score[i]) : 0;
    const bool is_greater = i < n && key > cut.least, is_equal = i < n && key == cut.least;
    const unsigned greaters = __ballot_sync(~0u, is_greater);
    const unsigned equals = __ballot_sync(~0u, is_equal);
    if (threadIdx.x % 32 == 0) greater_of[warp] = __popc(greaters), equal_of[warp] = __popc(equals);
    __syncthreads();
    int64_t g = greater + __popc(greaters & before_me), e = equal + __popc(equals & before_me);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) g += greater_of[w], e += equal_of[w];
      greater += greater_of[w];
      equal += equal_of[w];
    }
    if (is_greater || (is_equal && e < cut.equal)) {
      to[g + min(e, cut.equal)] = static_cast<int32_t>(i);
    }
    __syncthreads();  // before the next tile's counts
  }
}

}  // namespace lt2::cuda
