// The objective of a looped model that learns where to stop (Ouro, arXiv 2510.25741).
//
//   λ_t = sigmoid(gate_t),  p_t = λ_t Π_{j<t} (1 - λ_j) for t < T,  p_T = Π_{j<T} (1 - λ_j)
//   loss = sum_t p_t loss_t,  H = -sum_t p_t log p_t
//
// for every token: p is the chance of leaving after loop t, loss_t what the head gives there. With
// v_t the gradient of the objective to p_t,
//
//   dloss_t = p_t,  dgate_t = (1 - λ_t) p_t v_t - λ_t sum_{u>t} p_u v_u
#pragma once

#include <vector>

#include "core/tape.h"
#include "kernels/head_loss.h"
#include "kernels/kernel.h"

namespace lt2 {

// Elements of ExitLoss's result, after those of HeadLossSum: the entropy H, then p_1 … p_T.
enum ExitLossSum { kExitEntropySum = kHeadLossSums, kExitProbabilitySums };

struct ExitLossForwardArgs {
  std::vector<Tensor> gates_N;       // of loops 1 … T-1: logits, N elements each
  std::vector<Tensor> losses, lses;  // of loops 1 … T, [N] each
  Tensor targets_N;                  // I32; negative = not counted
  Tensor sums;                       // F64 [kExitProbabilitySums + T]
};

// Gradients are written, never added to; 0 where a token is not counted.
struct ExitLossBackwardArgs {
  Tensor dsums;  // F64 [kExitProbabilitySums + T]
  std::vector<Tensor> gates_N, losses, lses;
  Tensor targets_N;
  std::vector<Tensor> dgates_N, dlosses, dlses;
};

LT2_KERNEL(ExitLossForward, ExitLossForwardArgs)
LT2_KERNEL(ExitLossBackward, ExitLossBackwardArgs)

// F64 [kExitProbabilitySums + T]: sums over counted tokens of the expected loss and lse², of 1, of
// H and of each p_t. Seed the backward with {1, z_loss, anything, -β, 0 …} for the expected loss
// minus β times the entropy. gates: [N, 1] or [N], one fewer than `losses`.
Var ExitLoss(Tape& tape, const std::vector<Var>& gates, const std::vector<TokenLosses>& losses,
             const Tensor& targets_N);

}  // namespace lt2
