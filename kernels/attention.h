// Causal softmax attention over documents, with grouped key/value heads and a sliding window.
//
//   s_ij = scale q_i · k_j for the visible keys j: same document, j <= i, and i - window < j
//   p_ij = exp(s_ij - lse_i),  lse_i = log sum_j exp(s_ij),  o_i = sum_j p_ij v_j
//   δ_i = do_i · o_i,  ds_ij = p_ij (do_i · v_j - δ_i)
//   dv_j = sum_i p_ij do_i,  dq_i = scale sum_j ds_ij k_j,  dk_j = scale sum_i ds_ij q_i
//
// Query head h reads key/value head h / (H / G). Query i of M is token query_begin + i of N: M = N
// where all tokens of the documents are queries. The tiled form (Dao, "FlashAttention-2", 2023)
// never stores s: memory is linear in the number of tokens.
#pragma once

#include "core/tape.h"
#include "kernels/documents.h"
#include "kernels/kernel.h"

namespace lt2 {

struct AttentionOptions {
  double scale = 1;
  int64_t window = 0;  // how many keys a query sees, itself included; 0 = all
};

struct AttentionForwardArgs {
  Tensor q_NHD, k_NGD, v_NGE;  // q, o and lse: M rows
  Tensor o_NHE, lse_NH;
  AttentionOptions options;
  Documents documents;
};

struct AttentionBackwardArgs {
  Tensor do_NHE, q_NHD, k_NGD, v_NGE, o_NHE, lse_NH;
  Tensor dq_NHD, dk_NGD, dv_NGE;  // undefined where not wanted
  bool accumulate_dq = false, accumulate_dk = false, accumulate_dv = false;
  AttentionOptions options;
  Documents documents;
};

LT2_KERNEL(AttentionForward, AttentionForwardArgs)
LT2_KERNEL(AttentionBackward, AttentionBackwardArgs)

// o [M, H, E] from q [M, H, D], k [N, G, D], v [N, G, E]; H a multiple of G. `lse_NH` receives
// the log-sum-exp of each query's scores. o and lse survive recompute.
Var Attention(Tape& tape, Var q_NHD, Var k_NGD, Var v_NGE, const AttentionOptions& options,
              const Documents& documents, Tensor* lse_NH = nullptr);

// (query, key) pairs that attend, summed over documents; where their lengths are unknown (kMeta)
// they are taken as equal.
double VisiblePairs(const Documents& documents, int64_t window);

}  // namespace lt2
