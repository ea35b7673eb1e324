// Softmax attention in which every query names the key blocks that it reads.
//
// Query i of M is token query_begin + i of N: M = N where all tokens of the documents are queries.
// blocks [M, G, S]: per query and key/value head up to S blocks of `block` tokens, counted from the
// start of the query's document; distinct, in any order, -1 where there are fewer. A query i sees
// the keys j <= i of these blocks: block 1 selects single tokens.
//
//   s_ij = scale q_i · k_j for the visible keys j
//   p_ij = exp(s_ij - lse_i),  lse_i = log sum_j exp(s_ij),  o_i = sum_j p_ij v_j
//   δ_i = do_i · o_i,  ds_ij = p_ij (do_i · v_j - δ_i)
//   dv_j = sum_i p_ij do_i,  dq_i = scale sum_j ds_ij k_j,  dk_j = scale sum_i ds_ij q_i
//
// Query head h reads key/value head h / (H / G). Where nothing is visible o = 0 and lse = -inf. The
// lists are constants: no gradient flows into them. (Yuan et al.: "Native Sparse Attention",
// arXiv 2502.11089.) Memory is linear in the number of tokens.
#pragma once

#include "core/tape.h"
#include "kernels/documents.h"
#include "kernels/kernel.h"

namespace lt2 {

struct SelectedAttentionOptions {
  double scale = 1;
  int64_t block = 1;  // tokens
};

struct SelectedAttentionForwardArgs {
  Tensor q_NHD, k_NGD, v_NGE;
  Tensor blocks_NGS;  // I32
  Tensor o_NHE, lse_NH;
  SelectedAttentionOptions options;
  Documents documents;
};

struct SelectedAttentionBackwardArgs {
  Tensor do_NHE, q_NHD, k_NGD, v_NGE, o_NHE, lse_NH;
  Tensor blocks_NGS;              // I32
  Tensor dq_NHD, dk_NGD, dv_NGE;  // undefined where not wanted
  bool accumulate_dq = false, accumulate_dk = false, accumulate_dv = false;
  SelectedAttentionOptions options;
  Documents documents;
};

// Decoding: one new token for each of B sequences, against caches k [B, C, G, D], v [B, C, G, E] of
// capacity C, of which the first lengths[b] tokens are there, the new one included. No gradient.
struct SelectedAttentionStepArgs {
  Tensor q_BHD, k_BCGD, v_BCGE;
  Tensor blocks_BGS;  // I32
  Tensor lengths_B;   // I32
  Tensor o_BHE;
  SelectedAttentionOptions options;
};

LT2_KERNEL(SelectedAttentionForward, SelectedAttentionForwardArgs)
LT2_KERNEL(SelectedAttentionBackward, SelectedAttentionBackwardArgs)
LT2_KERNEL(SelectedAttentionStep, SelectedAttentionStepArgs)

// o [M, H, E] from q [M, H, D], k [N, G, D], v [N, G, E] and blocks [M, G, S]; H a multiple of G.
// `lse_NH` receives the log-sum-exp of each query's scores. o and lse survive recompute.
Var SelectedAttention(Tape& tape, Var q_NHD, Var k_NGD, Var v_NGE, const Tensor& blocks_NGS,
                      const SelectedAttentionOptions& options, const Documents& documents,
                      Tensor* lse_NH = nullptr);

// (query, key) pairs that attend in a document of `length` tokens if every list holds its query's
// own block and is full.
double SelectedPairs(int64_t length, int64_t selected, int64_t block);
// Summed over documents; where their lengths are unknown (kMeta) they are taken as equal.
double SelectedPairs(const Documents& documents, int64_t selected, int64_t block);

}  // namespace lt2
