// Which blocks of its document each of the M query tokens reads: native sparse attention's
// selection.
//
// With k̄ the blocks' mean keys (block_mean.h), c < n = ⌊(t+1)/ℓ⌋ those that end at or before the
// query's position t, and cur = ⌊t/ℓ⌋ its own:
//
//   p_hc = softmax over c < n of (scale q_th · k̄_c),  score_c = sum of p_hc over the group's heads
//
// The list holds blocks 0, cur - 1 and cur, and of the others c < cur those of the highest scores,
// the lower c where they are equal, S in all; ascending, filled up with -1. Every head of a group
// reads the same blocks. No gradient. (Yuan et al.: "Native Sparse Attention", arXiv 2502.11089.)
//
// Training, decoding and the reference call ChooseBlocks, whose sums are in double and in one
// order, so that equal inputs choose equal blocks to the last bit.
#pragma once

#include "core/tape.h"
#include "kernels/documents.h"
#include "kernels/kernel.h"

namespace lt2 {

struct SelectBlocksOptions {
  double scale = 1;
  int64_t block = 1;     // tokens
  int64_t selected = 3;  // S: at least the three that are always there
};

struct SelectBlocksForwardArgs {
  Tensor q_NHD, k_CGD;  // C = BlockRows(N, block); q and blocks: M rows
  Tensor blocks_NGS;    // I32
  SelectBlocksOptions options;
  Documents documents;
};

// Decoding: the list of the newest of lengths[b] tokens of each of B sequences, against the means
// k [B, R, G, D] of its blocks.
struct SelectBlocksStepArgs {
  Tensor q_BHD, k_BRGD;
  Tensor lengths_B;   // I32, at least 1
  Tensor blocks_BGS;  // I32
  SelectBlocksOptions options;
};

LT2_KERNEL(SelectBlocksForward, SelectBlocksForwardArgs)
LT2_KERNEL(SelectBlocksStep, SelectBlocksStepArgs)

// The lists, I32 [M, G, S]. They survive recompute.
Tensor SelectBlocks(Tape& tape, const Tensor& q_NHD, const Tensor& k_CGD,
                    const SelectBlocksOptions& options, const Documents& documents);

}  // namespace lt2
