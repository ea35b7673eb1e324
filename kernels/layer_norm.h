// LayerNorm of heads without bias: in each group of V channels y = w (x - mean) rstd,
// rstd = (mean((x - mean)²) + eps)^(-1/2), with a weight for every channel.
#pragma once

#include "core/tape.h"
#include "kernels/kernel.h"

namespace lt2 {

struct LayerNormForwardArgs {
  Tensor x, w, y;     // [N, C], [C], [N, C]
  Tensor mean, rstd;  // [N, C / V]
  double eps = 0;
};
// With e = dy w and x̂ = (x - mean) rstd: dx = rstd (e - mean(e) - x̂ mean(e x̂)), dw = sum of dy x̂.
struct LayerNormBackwardArgs {
  Tensor dy, x, w, mean, rstd, dx, dw;
  bool accumulate_dx = false;
};
LT2_KERNEL(LayerNormForward, LayerNormForwardArgs)
LT2_KERNEL(LayerNormBackward, LayerNormBackwardArgs)

// Groups of `group` of the C channels.
Var LayerNorm(Tape& tape, Var x_NC, Param& w_C, int64_t group, double eps);

}  // namespace lt2
