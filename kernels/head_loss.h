// Cross-entropy fused with the output head: logits exist for a chunk of tokens at a time.
//
//   z_iv = x_i · w_v,  lse_i = log sum_v exp(z_iv),  loss_i = lse_i - z_{i, y_i}
//   dz_iv = (a + 2 b lse_i) exp(z_iv - lse_i) - a [v = y_i]
//
// where a and b are the gradients of sum loss_i and of sum lse_i² (the z-loss of PaLM, 2022). Sums,
// not means: what a token is worth is known only where the global batch is counted. Where tokens
// weigh differently, HeadLossPerToken gives loss_i and lse_i themselves, with gradients a_i and
// c_i:
//
//   dz_iv = (a_i + c_i) exp(z_iv - lse_i) - a_i [v = y_i]
#pragma once

#include "core/tape.h"
#include "kernels/kernel.h"
#include "kernels/rank_link.h"

namespace lt2 {

// Elements of HeadLoss's result.
enum HeadLossSum { kLossSum, kSquaredLseSum, kCountedSum, kHeadLossSums };

struct HeadLossOptions {
  int64_t chunk_rows = 0;  // tokens whose logits exist at a time; 0 = chosen from the vocabulary
  // Up to this many probabilities are kept from forward to backward; more are computed again.
  int64_t keep_at_most = int64_t{1} << 21;
  // The gradient of the sums, F64 [kHeadLossSums], where it is known before: a recorded forward
  // then makes the gradients of x and w too, from logits computed once, and Backward must be seeded
  // with this very tensor.
  Tensor dsums = {};
  // Not null: w is held in part, as rows of the vocabulary, and other ranks hold the others. Losses
  // and sums are the same on all of them; the gradient of x is this rank's summand.
  RankLink* link = nullptr;
};

// What ranks that hold rows of w each know of a token, in accumulators: their own maximum of the
// logits and that over all, the sum of exp(z - maximum), and the target's logit, 0 elsewhere.
enum HeadLossStat { kOwnMost, kMost, kExpSum, kTargetLogit, kHeadLossStats };

struct HeadLossForwardArgs {
  Tensor x_ND, w_VD;
  Tensor targets_N;      // I32; negative = not counted
  Tensor logits;         // workspace: [chunk rows, V], or [N, V] if probabilities are kept
  Tensor loss_N, lse_N;  // 0 where not counted
  Tensor sums;           // F64 [kHeadLossSums]
  bool keep_probabilities = false;  // leave them in logits; rows that are not counted are 0
  Tensor dsums;         // F64 [kHeadLossSums], or undefined; where given, and nothing is kept:
  Tensor dx_ND, dw_VD;  // written, and added to; undefined where not wanted
  int64_t chunk_rows = 0;
  // w is rows first_row … first_row + V - 1 of `vocabulary`. Where others hold the rest:
  int64_t first_row = 0, vocabulary = 0;
  RankLink* link = nullptr;
  Tensor stats;  // workspace [kHeadLossStats, chunk rows]
};

struct HeadLossBackwardArgs {
  Tensor dsums;            // F64 [kHeadLossSums], or undefined and instead:
  Tensor dloss_N, dlse_N;  // a_i and c_i; one of them may be undefined, 0
  Tensor x_ND, w_VD, targets_N, lse_N;
  Tensor logits;  // workspace [chunk rows, V], or [N, V] with forward's probabilities
  bool logits_are_probabilities = false;  // they are overwritten
  Tensor dx_ND, dw_VD;                    // undefined where not wanted
  bool accumulate_dx = false;
  int64_t chunk_rows = 0;
  int64_t first_row = 0;
};

LT2_KERNEL(HeadLossForward, HeadLossForwardArgs)
LT2_KERNEL(HeadLossBackward, HeadLossBackwardArgs)

// F64 [kHeadLossSums] from x [N, D], w [V, D] and targets [N] (I32): sums over the tokens whose
// target is not negative of loss_i, of lse_i², and of 1. A target of V or more is a programmer's
// error. Seed the backward with {a, b, anything} as above: b is the z-loss factor times a.
Var HeadLoss(Tape& tape, Var x_ND, Param& w_VD, const Tensor& targets_N,
             const HeadLossOptions& options = {});

// Of each token, 0 where the target is negative.
struct TokenLosses {
  Var loss_N, lse_N;
};
TokenLosses HeadLossPerToken(Tape& tape, Var x_ND, Param& w_VD, const Tensor& targets_N,
                             const HeadLossOptions& options = {});

}  // namespace lt2
