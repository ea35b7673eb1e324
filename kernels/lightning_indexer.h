// Which earlier tokens each of M query tokens attends to: the S best by the scores of a small
// network.
//
//   I_ts = sum_h w_th max(q_th · k_s, 0)  for s <= t of the same document
//
// (the lightning indexer of DeepSeek-V3.2, 2025), or without weights the mean over heads of
// q_th · k_s, as LT2's code has it (arXiv 2605.20670). One row of scores exists at a time and
// thread: memory is linear in the number of tokens. Of equal scores the lower position comes first;
// index_score.h fixes every bit of a score.
#pragma once

#include "core/tape.h"
#include "kernels/documents.h"
#include "kernels/kernel.h"

namespace lt2 {

struct LightningIndexerArgs {
  Tensor q_NHD, k_ND;  // q, w and keys: M rows
  Tensor w_NH;         // undefined: the mean over heads
  Tensor keys_NS;      // I32: positions in the document, ascending; then -1 where t + 1 < S
  Documents documents;
};

// Decoding: one new token for each of B sequences, against a cache k [B, C, D] of capacity C, of
// which the first lengths[b] tokens are there, the new one included.
struct LightningIndexerStepArgs {
  Tensor q_BHD, k_BCD;
  Tensor w_BH;  // may be undefined
  Tensor lengths_B;
  Tensor keys_BS;
};

LT2_KERNEL(LightningIndexer, LightningIndexerArgs)
LT2_KERNEL(LightningIndexerStep, LightningIndexerStepArgs)

// I32 [M, S] from q [M, H, D], k [N, D] and w [M, H] (or undefined). A choice has no gradient; it
// survives recompute.
Tensor LightningIndexer(Tape& tape, const Tensor& q_NHD, const Tensor& k_ND, const Tensor& w_NH,
                        int64_t selected, const Documents& documents);

}  // namespace lt2
