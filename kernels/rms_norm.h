// RMS normalisation of rows, or of groups of a row's channels: y = w * x * rstd,
// rstd = (mean(x²) + eps)^(-1/2), with a weight for every channel.
#pragma once

#include "core/tape.h"
#include "kernels/kernel.h"

namespace lt2 {

struct RmsNormForwardArgs {
  Tensor x, w, y, rstd;  // [N, D], [D], [N, D], [N, groups]
  double eps = 0;
};
// With e = dy * w and x̂ = x rstd: dx = rstd (e - x̂ mean(e x̂)), dw += sum over rows of dy x̂.
struct RmsNormBackwardArgs {
  Tensor dy, x, w, rstd, dx, dw;
  Tensor through;  // a gradient that reaches x past the norm, added to dx; may be undefined
  bool accumulate_dx = false;
};
LT2_KERNEL(RmsNormForward, RmsNormForwardArgs)
LT2_KERNEL(RmsNormBackward, RmsNormBackwardArgs)

// x [..., D], w [D] -> y [..., D], normed in groups of `group` channels, by default all D at once.
Var RmsNorm(Tape& tape, Var x, Param& w, double eps, int64_t group = 0);

}  // namespace lt2
