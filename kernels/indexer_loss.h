// The loss that trains the lightning indexer: its scores, over the keys that a token attends to,
// shall be the logits of what the attention makes of these keys (DeepSeek-V3.2, 2025).
//
//   I_ts = sum_j w_tj max(a_tj · b_s, 0)                        j: index heads (index_score.h)
//   p_ts = sum_h exp(scale q_th · k_s - lse_th), divided by its sum over the keys s of t
//   loss = weight sum_t KL_t,  KL_t = sum_s p_ts (log p_ts - log softmax_s(I_t)_s)
//   dI_ts = dloss weight (softmax_s(I_t)_s - p_ts)
//   dw_tj = sum_s dI_ts max(r_tjs, 0),  dr_tjs = dI_ts w_tj [r_tjs > 0],  r_tjs = a_tj · b_s
//   da_tj = sum_s dr_tjs b_s,  db_s = sum_tj dr_tjs a_tj
//
// The target p has no gradient. Everything is computed again in backward: memory is linear in the
// length of the lists. Queries t are M of N tokens s. A sum over queries, not a mean, as all losses
// are (head_loss.h).
//
// Where ranks divide the heads h, p is the mean of their targets, each of a rank's own heads, and
// dI, which is linear in p, the mean of what these give.
#pragma once

#include "core/tape.h"
#include "kernels/documents.h"
#include "kernels/kernel.h"
#include "kernels/rank_link.h"

namespace lt2 {

// The attention that sets the target, and its keys.
struct IndexerTarget {
  Tensor q_NHD, k_NGD, lse_NH;
  Tensor keys_NS;  // I32: positions in the document; the first -1 ends a list
  double scale = 1;
  Documents documents;
  Tensor p_MS = {};  // of accumulators: p times any number; where defined q, k, lse are not read
};

struct IndexerLossForwardArgs {
  Tensor a_NJC, b_NC, w_NJ;
  IndexerTarget target;
  double weight = 1;
  Tensor kl_N, loss;  // F64 [M], F64 [1]
  Tensor p_MS = {};  // of accumulators: where defined p is written, 0 behind the lists, and no loss
};

struct IndexerLossBackwardArgs {
  Tensor dloss;  // F64 [1]
  Tensor a_NJC, b_NC, w_NJ;
  IndexerTarget target;
  double weight = 1;
  Tensor da_NJC, db_NC, dw_NJ;  // undefined where not wanted
  bool accumulate_da = false, accumulate_db = false, accumulate_dw = false;
  // Workspace: dI, and I32 [N + 1 + M S] for the lists sorted by key.
  Tensor dscore_NS, readers;
};

LT2_KERNEL(IndexerLossForward, IndexerLossForwardArgs)
LT2_KERNEL(IndexerLossBackward, IndexerLossBackwardArgs)

// F64 [1] from the indexer's queries a [M, J, C], keys b [N, C] and weights w [M, J], which alone
// get gradients. With a link, the other ranks have the same lists, a, b and w, and other heads: the
// loss is of all heads, the same on every rank and made once under Recompute; gradients are
// summands.
Var IndexerLoss(Tape& tape, Var a_NJC, Var b_NC, Var w_NJ, const IndexerTarget& target,
                double weight, RankLink* link = nullptr);

}  // namespace lt2
