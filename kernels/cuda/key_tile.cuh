// Rows of keys in shared memory, a thread a key, and the heads that are multiplied with them.
#pragma once

#include "kernels/cuda/tensor_core.cuh"
#include "kernels/fused_dots.h"
#include "kernels/gpu_limits.h"

namespace lt2::cuda {

inline constexpr int kTileKeys = gpu::kTileKeys;  // and threads of a block
inline constexpr int kTileStride = kTileKeys + 1;
inline constexpr int kHeadLanes = gpu::kHeadLanes;  // heads side by side
static_assert(kTileStride == gpu::kTileStride);

__host__ __device__ inline int64_t PadHeads(int64_t heads) { return gpu::PaddedHeads(heads); }

// tile [width, kTileStride] = transposed rows: key i, i < keys, is row row_of(i) of `from`, rows
// being `stride` apart. All threads call; they may read when it returns.
template <class T, class RowOf>
__device__ inline void LoadTile(const T* from, int64_t stride, int64_t width, int64_t keys,
                                const RowOf& row_of, float* tile) {
  __syncthreads();  // an earlier tile has been read
  for (int64_t e = threadIdx.x; e < keys * width; e += kTileKeys) {
    const int64_t i = e / width, d = e - i * width;
    tile[d * kTileStride + i] = Get(from, row_of(i) * stride + d);
  }
  __syncthreads();
}

// to [width, PadHeads(heads)] = factor · from [heads, width] transposed, in double; zeros beyond
// `heads`.
template <class T>
__device__ inline void LoadHeads(const T* from, int64_t heads, int64_t width, double factor,
                                 double* to) {
  const int64_t lanes = PadHeads(heads);
  for (int64_t e = threadIdx.x; e < width * lanes; e += kTileKeys) {
    const int64_t d = e / lanes, h = e - d * lanes;
    to[e] = h < heads ? factor * double{Get(from, h * width + d)} : 0;
  }
}

// fn(h, dot) for the heads in order: their products with the thread's key of the tile.
template <class Fn>
__device__ inline void ForEachDot(const float* tile, int64_t width, const double* heads_DH,
                                  int64_t heads, const Fn& fn) {
  const int64_t lanes = PadHeads(heads);
  for (int64_t first = 0; first < heads; first += kHeadLanes) {
    double dots[kHeadLanes];
    FusedDots<kHeadLanes>(tile + threadIdx.x, kTileStride, width, heads_DH + first, lanes, dots);
#pragma unroll
    for (int h = 0; h < kHeadLanes; ++h) {
      if (first + h < heads) fn(first + h, dots[h]);
    }
  }
}

template <class Kernel>
void AllowTile(const char* name, Kernel kernel, int64_t bytes) {
  CHECK_LE(bytes, gpu::kMostTileBytes) << name << ": shared memory for its heads and channels";
  LT2_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(bytes)));
}

}  // namespace lt2::cuda
