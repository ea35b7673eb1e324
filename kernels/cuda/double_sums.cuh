// Sums in double of what blocks have summed: always in the same order.
#pragma once

#include "kernels/cuda/common.cuh"

namespace lt2::cuda {

// Over a block of 256 threads, all of which must call; every thread holds the result.
__device__ inline double BlockSumF64(double x) {
  __shared__ double of_warp[8];
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) x += __shfl_xor_sync(~0u, x, lane);
  __syncthreads();  // an earlier call's results have been read
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = x;
  __syncthreads();
  double sum = 0;
#pragma unroll
  for (int w = 0; w < 8; ++w) sum += of_warp[w];
  return sum;
}

// to[blockIdx.x] (+)= factor · the sum of row blockIdx.x of parts [rows, n], on one block a row.
template <class T>
__global__ void __launch_bounds__(256)
    SumParts(int64_t n, const T* parts, double factor, bool add, double* to) {
  double sum = 0;
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < n; i += 256) sum += double{parts[blockIdx.x * n + i]};
  sum = factor * BlockSumF64(sum);
  if (threadIdx.x == 0) to[blockIdx.x] = add ? to[blockIdx.x] + sum : sum;
}

}  // namespace lt2::cuda
