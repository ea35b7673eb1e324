// Maximum and sum of exponentials along a row, read once: each thread sums its part, relative to
// the largest it saw.
#pragma once

#include <cmath>

#include "kernels/cuda/eight.cuh"

namespace lt2::cuda {

// Accurate where T = float is checked against float64, fast where T = bf16 rounds more than it.
template <class T>
__device__ inline float ExpFor(float x) {
  if constexpr (sizeof(T) == 4) return expf(x);
  return __expf(x);
}

// sum exp(z - most) over what was seen; nothing yet: most is -inf.
struct SumExp {
  float most = -INFINITY, sum = 0;
};

// Some more of them.
template <class T, int kCount>
__device__ inline void Add(SumExp& to, const float (&z)[kCount]) {
  float most = to.most;
#pragma unroll
  for (int i = 0; i < kCount; ++i) most = fmaxf(most, z[i]);
  float sum = to.most == most ? to.sum : to.sum * ExpFor<T>(to.most - most);
#pragma unroll
  for (int i = 0; i < kCount; ++i) sum += ExpFor<T>(z[i] - most);
  to = {most, sum};
}

// Over a block; every thread calls and holds the result. Sums are taken in one order.
template <class T, int kThreads>
__device__ inline SumExp BlockMerge(SumExp x) {
  const float most = BlockMax<kThreads>(x.most);
  return {most, BlockSum<kThreads>(x.most == most ? x.sum : x.sum * ExpFor<T>(x.most - most))};
}

// Calls with_eight(first, Eight) or with_one(index, value) for the thread's share of a row of n.
template <int kThreads, class T, class WithEight, class WithOne>
__device__ inline void ForEachOf(const T* row, int64_t n, bool eights, WithEight&& with_eight,
                                 WithOne&& with_one) {
  if (eights) {
    for (int64_t i = int64_t{threadIdx.x} * 8; i < n; i += kThreads * 8) {
      with_eight(i, Eight<T>(row + i));
    }
  } else {
    for (int64_t i = threadIdx.x; i < n; i += kThreads) with_one(i, Get(row, i));
  }
}

}  // namespace lt2::cuda
