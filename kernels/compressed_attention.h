// Softmax attention to the means of a document's past blocks (block_mean.h).
//
// The query at position t of its document (each of the M query tokens has one) sees the blocks that
// end at or before it, c < ⌊(t+1)/ℓ⌋:
//
//   s_tc = scale q_t · k̄_c,  o_t = sum_c softmax_c(s_tc) v̄_c,  lse_t = log sum_c exp(s_tc)
//
// and backwards as in attention.h. o = 0 and lse = -inf where it sees none. Query head h reads
// key/value head h / (H / G). (Yuan et al.: "Native Sparse Attention", arXiv 2502.11089.)
#pragma once

#include "core/tape.h"
#include "kernels/documents.h"
#include "kernels/kernel.h"

namespace lt2 {

struct CompressedAttentionOptions {
  double scale = 1;
  int64_t block = 1;  // tokens
};

struct CompressedAttentionForwardArgs {
  Tensor q_NHD, k_CGD, v_CGE;  // M rows of q, o and lse; C = BlockRows(N, block)
  Tensor o_NHE, lse_NH;
  CompressedAttentionOptions options;
  Documents documents;
};

struct CompressedAttentionBackwardArgs {
  Tensor do_NHE, q_NHD, k_CGD, v_CGE, o_NHE, lse_NH;
  Tensor dq_NHD, dk_CGD, dv_CGE;  // undefined where not wanted
  bool accumulate_dq = false, accumulate_dk = false, accumulate_dv = false;
  CompressedAttentionOptions options;
  Documents documents;
};

// Decoding: one new token for each of B sequences of lengths[b] tokens, the new one included,
// against means k [B, R, G, D], v [B, R, G, E] of their blocks. No gradient.
struct CompressedAttentionStepArgs {
  Tensor q_BHD, k_BRGD, v_BRGE;
  Tensor lengths_B;  // I32
  Tensor o_BHE;
  CompressedAttentionOptions options;
};

LT2_KERNEL(CompressedAttentionForward, CompressedAttentionForwardArgs)
LT2_KERNEL(CompressedAttentionBackward, CompressedAttentionBackwardArgs)
LT2_KERNEL(CompressedAttentionStep, CompressedAttentionStepArgs)

// o [M, H, E] from q [M, H, D] and the BlockMean of keys and values. o and lse survive recompute.
Var CompressedAttention(Tape& tape, Var q_NHD, Var k_CGD, Var v_CGE,
                        const CompressedAttentionOptions& options, const Documents& documents);

// (query, block) pairs that attend in a document of `length` tokens.
double CompressedPairs(int64_t length, int64_t block);
// Summed over documents; where their lengths are unknown (kMeta) they are taken as equal.
double CompressedPairs(const Documents& documents, int64_t block);

}  // namespace lt2
