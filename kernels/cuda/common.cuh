// What every CUDA kernel file stands on: element types, launches, sums over warps and blocks.
//
// Activations and their gradients are T = float or bf16; statistics, gates, decays, states, weights
// outside matrix products and every parameter gradient are float (core/dtype.h, AccumulatorOf).
// Arithmetic is float's throughout. Grids depend on sizes alone and sums are taken in a fixed
// order, so that results repeat bit for bit.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "core/check.h"
#include "core/cuda/check.h"
#include "core/cuda/operator_note.h"
#include "core/cuda/stream.h"
#include "core/tensor.h"

namespace lt2::cuda {

using bf16 = __nv_bfloat16;

// After each launch: reports a refused launch with the kernel's name and the operator's shapes.
inline void CheckLaunch(const char* kernel) {
  const cudaError_t status = cudaGetLastError();
  CHECK(status == cudaSuccess) << kernel << " in " << OperatorNote() << ": "
                               << cudaGetErrorString(status);
}

template <class T>
constexpr DType kTypeOf = kDTypeOf<T>;
template <>
inline constexpr DType kTypeOf<bf16> = DType::kBF16;

// The elements on the GPU; CHECKs the type.
template <class T>
T* Data(const Tensor& x) {
  CHECK_EQ(x.dtype(), kTypeOf<T>);
  NoteTensor(x);
  return static_cast<T*>(x.raw());
}
template <class T>
T* DataOrNull(const Tensor& x) {
  return x.defined() ? Data<T>(x) : nullptr;
}

// Calls fn.template operator()<T>() with T = float or bf16.
template <class Fn>
void DispatchType(const char* kernel, DType dtype, Fn&& fn) {
  switch (dtype) {
    case DType::kF32:
      return fn.template operator()<float>();
    case DType::kBF16:
      return fn.template operator()<bf16>();
    default:
      CHECK(false) << kernel << " on the GPU takes f32 or bf16, not " << dtype;
  }
}

__device__ inline float Get(const float* x, int64_t i) { return x[i]; }
__device__ inline float Get(const bf16* x, int64_t i) { return __bfloat162float(x[i]); }
__device__ inline void Put(float* x, int64_t i, float value) { x[i] = value; }
__device__ inline void Put(bf16* x, int64_t i, float value) { x[i] = __float2bfloat16_rn(value); }
// Writes, or adds where a gradient is there already.
template <class T>
__device__ inline void PutOrAdd(T* x, int64_t i, float value, bool add) {
  Put(x, i, add ? Get(x, i) + value : value);
}

__device__ inline float Sigmoid(float x) { return 1 / (1 + __expf(-x)); }
__device__ inline float SoftPlus(float x) { return x > 20 ? x : log1pf(expf(x)); }

// Butterflies: every lane holds the result.
__device__ inline float WarpSum(float x) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) x += __shfl_xor_sync(~0u, x, lane);
  return x;
}
__device__ inline float WarpMax(float x) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, lane));
  return x;
}
// Over a block of kThreads (a multiple of 32) threads, all of which must call; every thread holds
// the result.
template <int kThreads>
__device__ inline float BlockSum(float x) {
  static_assert(kThreads % 32 == 0);
  __shared__ float of_warp[kThreads / 32];
  x = WarpSum(x);
  __syncthreads();  // an earlier call's results have been read
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kThreads / 32; ++w) sum += of_warp[w];
  return sum;
}
template <int kThreads>
__device__ inline float BlockMax(float x) {
  static_assert(kThreads % 32 == 0);
  __shared__ float of_warp[kThreads / 32];
  x = WarpMax(x);
  __syncthreads();
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = x;
  __syncthreads();
  float most = of_warp[0];
#pragma unroll
  for (int w = 1; w < kThreads / 32; ++w) most = fmaxf(most, of_warp[w]);
  return most;
}

// Multiprocessors of the thread's GPU. For blocks that take items in turn; sums over blocks must
// not depend on it.
inline int Processors() {
  int device = 0, processors = 0;
  LT2_CUDA_CHECK(cudaGetDevice(&device));
  LT2_CUDA_CHECK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  return processors;
}

inline unsigned Blocks(int64_t items, int64_t per_block) {
  return static_cast<unsigned>((items + per_block - 1) / per_block);
}

// One thread an element: fn(i) for i in [0, n).
template <class Fn>
__global__ void __launch_bounds__(256) ForEachKernel(int64_t n, Fn fn) {
  const int64_t i = int64_t{blockIdx.x} * 256 + threadIdx.x;
  if (i < n) fn(i);
}
template <class Fn>
void ForEach(const Stream& stream, const char* name, int64_t n, Fn fn) {
  if (n == 0) return;
  ForEachKernel<<<Blocks(n, 256), 256, 0, Handle(stream)>>>(n, fn);
  CheckLaunch(name);
}

}  // namespace lt2::cuda
