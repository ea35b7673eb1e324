// One warp attends for one row, over 32 others at a time, plainly: any type and any head size.
#pragma once

#include "kernels/cuda/tensor_core.cuh"
#include "kernels/gpu_limits.h"

namespace lt2::cuda {

inline constexpr int kPlainWarps = 4, kPlainThreads = 32 * kPlainWarps;

template <class T>
__device__ inline float Dot(const T* a, const T* b, int64_t n) {
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += Get(a, i) * Get(b, i);
  return sum;
}

// What each warp of a block has in shared memory: 32 weights, then `width` sums, now zero.
__device__ inline float* WarpShared(int64_t width) {
  float* own = reinterpret_cast<float*>(DynamicShared()) + threadIdx.x / 32 * (32 + width);
  for (int64_t c = threadIdx.x % 32; c < 32 + width; c += 32) own[c] = 0;
  __syncwarp();
  return own;
}
inline int PlainSharedBytes(int64_t width) {
  CHECK_LE(width, gpu::kMostPlainAttention) << "channels of a query and a value on the GPU";
  return static_cast<int>(kPlainWarps * (32 + width) * sizeof(float));
}

// sums = shrink · sums + sum of weight_n · row n over the lanes' weights; rows are `stride` apart,
// and only the first `rows` are read.
template <class T>
__device__ inline void AddWeighted(float weight, int rows, const T* from, int64_t stride,
                                   int64_t width, float shrink, float* weights, float* sums) {
  weights[threadIdx.x % 32] = weight;
  __syncwarp();
  for (int64_t c = threadIdx.x % 32; c < width; c += 32) {
    float sum = sums[c] * shrink;
    for (int n = 0; n < rows; ++n) sum += weights[n] * Get(from, n * stride + c);
    sums[c] = sum;
  }
  __syncwarp();
}

}  // namespace lt2::cuda
