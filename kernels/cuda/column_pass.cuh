// One pass over a matrix in which a thread owns a piece of columns and walks down the rows: what
// belongs to a column is read once, and sums over rows come along in registers.
//
//   struct Pass {
//     static constexpr int kSums = 1;                     // sums over rows, of every column
//     struct Columns {…};  struct Row {…};
//     __device__ Columns AtColumn(int64_t column) const;  // of the piece that begins there
//     // at = row · columns + column
//     __device__ Row Load(int64_t row, int64_t at, const Columns&) const;
//     __device__ void Use(int64_t row, int64_t at, const Columns&, const Row&,
//                         Piece<n>* sums) const;
//   };
//
// Sums are taken in a fixed order: a thread's rows, a block's threads, then the bands of rows.
#pragma once

#include <algorithm>

#include "kernels/cuda/piece.cuh"
#include "kernels/cuda/scratch.h"

namespace lt2::cuda {

template <int n, class Pass>
__global__ void __launch_bounds__(256)
    ColumnPassKernel(int64_t rows, int64_t columns, Pass pass, float* partial) {
  constexpr int kSums = Pass::kSums;
  const int64_t first = int64_t{blockIdx.x} * blockDim.x * n, column = first + threadIdx.x * n;
  Piece<n> sums[kSums > 0 ? kSums : 1] = {};
  if (column < columns) {
    const typename Pass::Columns of_columns = pass.AtColumn(column);
    const int64_t each = (rows + gridDim.y - 1) / gridDim.y, step = blockDim.y;
    const int64_t begin = blockIdx.y * each, end = min(rows, begin + each);
    int64_t row = begin + threadIdx.y;
    for (; row + step < end; row += 2 * step) {
      const int64_t at = row * columns + column, next = at + step * columns;
      const typename Pass::Row a = pass.Load(row, at, of_columns);
      const typename Pass::Row b = pass.Load(row + step, next, of_columns);
      pass.Use(row, at, of_columns, a, sums);
      pass.Use(row + step, next, of_columns, b, sums);
    }
    if (row < end) {
      const int64_t at = row * columns + column;
      pass.Use(row, at, of_columns, pass.Load(row, at, of_columns), sums);
    }
  }
  if constexpr (kSums > 0) {
    __shared__ float of_thread[256 * n];  // [blockDim.y][columns of the block]
    const int width = blockDim.x * n, thread = threadIdx.y * blockDim.x + threadIdx.x;
#pragma unroll
    for (int s = 0; s < kSums; ++s) {
      __syncthreads();
#pragma unroll
      for (int i = 0; i < n; ++i) of_thread[thread * n + i] = sums[s][i];
      __syncthreads();
      for (int c = thread; c < width && first + c < columns; c += 256) {
        float sum = 0;
        for (int y = 0; y < blockDim.y; ++y) sum += of_thread[y * width + c];
        partial[(int64_t{blockIdx.y} * kSums + s) * columns + first + c] = sum;
      }
    }
  }
}

// put(i, sum over b of partial[b · stride + i]) for i in [0, count).
template <int kHigh, class Put>
__global__ void __launch_bounds__(32 * kHigh)
    FinishSumsKernel(int64_t bands, int64_t stride, int64_t count, const float* partial, Put put) {
  __shared__ float of_lane[kHigh][33];
  const int64_t i = int64_t{blockIdx.x} * 32 + threadIdx.x;
  float sum = 0;
  if (i < count) {
#pragma unroll 8
    for (int64_t b = threadIdx.y; b < bands; b += kHigh) sum += partial[b * stride + i];
  }
  of_lane[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || i >= count) return;
#pragma unroll
  for (int y = 1; y < kHigh; ++y) sum += of_lane[y][threadIdx.x];
  put(i, sum);
}
template <class Put>
void FinishSums(const Stream& stream, const char* name, int64_t bands, int64_t stride,
                int64_t count, const float* partial, const Put& put) {
  if (count == 0) return;
  const auto launch = [&]<int kHigh>() {
    FinishSumsKernel<kHigh><<<Blocks(count, 32), dim3(32, kHigh), 0, Handle(stream)>>>(
        bands, stride, count, partial, put);
  };
  bands <= 64 ? launch.template operator()<8>() : launch.template operator()<32>();
  CheckLaunch(name);
}

// to[step i] (+)= the sum.
struct SumTo {
  float* to;
  int64_t step;
  bool add;

  __device__ void operator()(int64_t i, float sum) const {
    to[i * step] = add ? to[i * step] + sum : sum;
  }
};

// to[o] (+)= sum over b and over the `per` columns of group o; a block a group.
template <class = void>
__global__ void __launch_bounds__(256)
    FinishGroupSumsKernel(int64_t bands, int64_t stride, int64_t per, const float* partial,
                          bool add, float* to) {
  float sum = 0;
  for (int64_t i = threadIdx.x; i < bands * per; i += 256) {
    sum += partial[i / per * stride + blockIdx.x * per + i % per];
  }
  sum = BlockSum<256>(sum);
  if (threadIdx.x == 0) to[blockIdx.x] = add ? to[blockIdx.x] + sum : sum;
}

// What a pass has summed: [bands, sums, columns].
struct PartialSums {
  const float* data = nullptr;
  int64_t bands = 0, sums = 0, columns = 0;

  // to[step c] += sum number `sum` of column c, or = without `add`. Nothing where `to` is null.
  void Finish(const Stream& stream, const char* name, int64_t sum, float* to, bool add = true,
              int64_t step = 1) const {
    if (to == nullptr) return;
    FinishSums(stream, name, bands, sums * columns, columns, data + sum * columns,
               SumTo{to, step, add});
  }
  // to[c / per] += … : neighbouring columns share one sum.
  void FinishGroups(const Stream& stream, const char* name, int64_t sum, int64_t per, float* to,
                    bool add = true) const {
    if (per == 1) return Finish(stream, name, sum, to, add);
    if (to == nullptr || columns == 0) return;
    FinishGroupSumsKernel<><<<Blocks(columns, per), 256, 0, Handle(stream)>>>(
        bands, sums * columns, per, data + sum * columns, add, to);
    CheckLaunch(name);
  }
};

// The sums are valid until the thread's next Scratch.
template <int n, class Pass>
PartialSums ColumnPass(const Stream& stream, const char* name, int64_t rows, int64_t columns,
                       const Pass& pass) {
  constexpr int64_t kBlocks = Pass::kSums > 0 ? 528 : 1056;  // whole waves of 132 processors
  int64_t wide = 1;
  while (wide < 32 && wide * n < columns) wide *= 2;
  const int64_t high = 256 / wide, across = Blocks(columns, wide * n);
  const int64_t bands = std::clamp<int64_t>(kBlocks / std::max<int64_t>(across, 1), 1,
                                            std::clamp<int64_t>(Blocks(rows, 2 * high), 1, 65535));
  PartialSums sums{.bands = bands, .sums = Pass::kSums, .columns = columns};
  if (columns == 0 || (rows == 0 && Pass::kSums == 0)) return sums;
  float* partial = nullptr;
  if (Pass::kSums > 0) partial = ScratchFor<float>(stream, bands * Pass::kSums * columns);
  sums.data = partial;
  const dim3 grid(static_cast<unsigned>(across), static_cast<unsigned>(bands));
  const dim3 block(static_cast<unsigned>(wide), static_cast<unsigned>(high));
  ColumnPassKernel<n><<<grid, block, 0, Handle(stream)>>>(rows, columns, pass, partial);
  CheckLaunch(name);
  return sums;
}

}  // namespace lt2::cuda
