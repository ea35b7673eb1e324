// The SwiGLU feed-forward layer: y = w_down (silu(w_gate x) ⊙ w_up x), or residual + that.
//
// Its two kernels are the matrix products on either side of the gate together with the gate: on a
// GPU one launch each, so that what lies between them is not written and read again.
#pragma once

#include "core/tape.h"
#include "kernels/kernel.h"
#include "kernels/row_sums.h"

namespace lt2 {

// gate = x w_gateᵀ, up = x w_upᵀ, and hidden = silu(gate) ⊙ up of them as they are stored.
struct SwiGluFfnForwardArgs {
  Tensor x, w_gate, w_up;   // [..., I], [H, I]
  Tensor gate, up, hidden;  // [..., H]; hidden is undefined where not wanted
};
// With dhidden = dy w_down, rounded as it would be stored: the gradients of gate and up, and hidden
// again.
struct SwiGluFfnBackwardArgs {
  Tensor dy, w_down, gate, up;  // [..., O], [O, H], [..., H]
  Tensor dgate, dup, hidden;    // [..., H]; hidden is undefined where not wanted
};
LT2_KERNEL(SwiGluFfnForward, SwiGluFfnForwardArgs)
LT2_KERNEL(SwiGluFfnBackward, SwiGluFfnBackwardArgs)

// The same as products and gates of their own.
void SwiGluFfnForwardInParts(Stream& stream, const SwiGluFfnForwardArgs& args);
void SwiGluFfnBackwardInParts(Stream& stream, const SwiGluFfnBackwardArgs& args);

// x [..., I], weights [H, I], [H, I] and [O, H]; residual, where there is one, is of y's shape and
// added before rounding. Weight gradients can be deferred. Where a tape rebuilds products, gate and
// up are made again if they are wider than x; hidden is never kept where anything is rebuilt.
Var SwiGluFfn(Tape& tape, const Var& x, Param& w_gate, Param& w_up, Param& w_down,
              const Var* residual = nullptr);
// The same where ranks have other hidden channels: of the own rows the own rows of the sum, which
// survives Recompute.
Var SwiGluFfnSum(Tape& tape, const Var& own, Param& w_gate, Param& w_up, Param& w_down,
                 RowSums& sums);

}  // namespace lt2
