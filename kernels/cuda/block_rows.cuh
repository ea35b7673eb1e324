// Which tokens the rows of block_mean.h are of.
#pragma once

#include "kernels/block_mean.h"
#include "kernels/cuda/common.cuh"

namespace lt2::cuda {

// The first of the row's `block` tokens, or -1 where it is of none. The row's document is that of
// the last token t with BlockRow(t) = row, as it is the last that begins at or before.
__device__ inline int64_t FirstToken(const int32_t* positions, int64_t tokens, int64_t block,
                                     int64_t row) {
  const int64_t t = min((row + 1) * block, tokens) - 1, begin = t - positions[t];
  const int64_t first = begin + (row - BlockRow(begin, block)) * block, last = first + block - 1;
  return last < tokens && last - positions[last] == begin ? first : -1;
}

}  // namespace lt2::cuda
