// Means over the whole blocks of each document: the compressed keys and values of native sparse
// attention (Yuan et al., arXiv 2502.11089, with a mean for the learned compression).
//
//   mean_c = 1/ℓ sum of x_j over the ℓ tokens j of block c;  dx_j = dmean_c / ℓ
//
// Blocks are counted from the document's start; its last tokens, fewer than a block, are in none.
// Block c of the document that begins at token b is row ⌊b/ℓ⌋ + c of the ⌊N/ℓ⌋ rows (BlockRow);
// rows of no block are zero.
#pragma once

#include <algorithm>

#include "core/tape.h"
#include "kernels/documents.h"
#include "kernels/kernel.h"

namespace lt2 {

// How many rows the blocks of `tokens` tokens need, at least one.
constexpr int64_t BlockRows(int64_t tokens, int64_t block) {
  return std::max<int64_t>(1, tokens / block);
}
// The row of a document's first block. Rows of documents do not overlap: ⌊b/ℓ⌋ + ⌊n/ℓ⌋ <=
// ⌊(b+n)/ℓ⌋.
constexpr int64_t BlockRow(int64_t document_begin, int64_t block) { return document_begin / block; }

// The mean of a block's rows x [block, width], in double and in the order of tokens: the same bits
// in training and in decoding.
template <class T>
inline void MeanOfRows(const T* x, int64_t block, int64_t width, T* mean) {
  constexpr int64_t kChannels = 32;  // summed side by side
  for (int64_t first = 0; first < width; first += kChannels) {
    const int64_t channels = std::min(kChannels, width - first);
    double sums[kChannels] = {};
    for (int64_t j = 0; j < block; ++j) {
      const T* row = x + j * width + first;
#pragma omp simd
      for (int64_t i = 0; i < channels; ++i) sums[i] += static_cast<double>(row[i]);
    }
    for (int64_t i = 0; i < channels; ++i) {
      mean[first + i] = static_cast<T>(sums[i] / static_cast<double>(block));
    }
  }
}

struct BlockMeanForwardArgs {
  Tensor x_NGD, mean_CGD;
  int64_t block;
  Documents documents;
};

struct BlockMeanBackwardArgs {
  Tensor dmean_CGD, dx_NGD;
  bool accumulate_dx = false;
  int64_t block;
  Documents documents;
};

// Decoding: where the newest of lengths[b] tokens ends a block of cache x [B, S, …], its mean
// becomes the block's row of mean [B, BlockRows(S), …].
struct BlockMeanStepArgs {
  Tensor x_BSC, mean_BRC;
  Tensor lengths_B;  // I32
  int64_t block;
};

LT2_KERNEL(BlockMeanForward, BlockMeanForwardArgs)
LT2_KERNEL(BlockMeanBackward, BlockMeanBackwardArgs)
LT2_KERNEL(BlockMeanStep, BlockMeanStepArgs)

// [BlockRows(N, block), G, D] from x [N, G, D].
Var BlockMean(Tape& tape, Var x_NGD, int64_t block, const Documents& documents);

}  // namespace lt2
