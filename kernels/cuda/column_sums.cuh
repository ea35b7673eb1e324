// dw[c] += sum over rows of f(row, c), always in the same order: blocks of rows, then their sums.
#pragma once

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/scratch.h"

namespace lt2::cuda {

inline constexpr int64_t kSumRows = 128;  // at least, of a block

inline int64_t SumBlocks(int64_t rows) {
  const int64_t blocks = (rows + kSumRows - 1) / kSumRows;
  return blocks < 256 ? blocks : 256;
}

template <class Fn>
__global__ void __launch_bounds__(256)
    PartialColumnSums(int64_t rows, int64_t columns, Fn fn, float* partial) {
  const int64_t c = int64_t{blockIdx.x} * 256 + threadIdx.x;
  if (c >= columns) return;
  const int64_t each = (rows + gridDim.y - 1) / gridDim.y;
  const int64_t begin = blockIdx.y * each, end = min(rows, begin + each);
  float sum = 0;
  for (int64_t r = begin; r < end; ++r) sum += fn(r, c);
  partial[blockIdx.y * columns + c] = sum;
}

template <class = void>
__global__ void __launch_bounds__(256)
    AddPartialSums(int64_t blocks, int64_t columns, const float* partial, float* dw) {
  const int64_t c = int64_t{blockIdx.x} * 256 + threadIdx.x;
  if (c >= columns) return;
  float sum = 0;
  for (int64_t b = 0; b < blocks; ++b) sum += partial[b * columns + c];
  dw[c] += sum;
}

// fn(row, column) is called on the device; columns are neighbours in memory.
template <class Fn>
void AddColumnSums(const Stream& stream, const char* name, int64_t rows, int64_t columns, Fn fn,
                   float* dw) {
  if (rows == 0 || columns == 0) return;
  const int64_t blocks = SumBlocks(rows);
  float* partial = ScratchFor<float>(stream, blocks * columns);
  const dim3 grid(Blocks(columns, 256), static_cast<unsigned>(blocks));
  PartialColumnSums<<<grid, 256, 0, Handle(stream)>>>(rows, columns, fn, partial);
  CheckLaunch(name);
  AddPartialSums<><<<Blocks(columns, 256), 256, 0, Handle(stream)>>>(blocks, columns, partial, dw);
  CheckLaunch(name);
}

}  // namespace lt2::cuda
