// The output norm of linear mixers: per head of V channels, y = w * x̂ * act(gate).
#pragma once

#include "core/tape.h"
#include "kernels/gated_product.h"
#include "kernels/kernel.h"

namespace lt2 {

struct GatedRmsNormForwardArgs {
  Tensor x, gate, w, y, rstd;  // [N, C], [N, C], [V], [N, C], [N · C / V]
  double eps = 0;
  GateKind kind = GateKind::kSwish;
};
// With e = dy * act(gate) the norm's own gradients (rms_norm.h); dgate = dy * w * x̂ * act'(gate).
struct GatedRmsNormBackwardArgs {
  Tensor dy, x, gate, w, rstd, dx, dgate, dw;
  GateKind kind = GateKind::kSwish;
  bool accumulate_dx = false, accumulate_dgate = false;
};
LT2_KERNEL(GatedRmsNormForward, GatedRmsNormForwardArgs)
LT2_KERNEL(GatedRmsNormBackward, GatedRmsNormBackwardArgs)

// x, gate of one size, w [V] with V dividing the last extent of x.
Var GatedRmsNorm(Tape& tape, Var x, Var gate, Param& w, double eps, GateKind kind);

}  // namespace lt2
