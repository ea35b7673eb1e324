// A residual sum and the norm of it in one pass: sum = x + residual, y = RmsNorm(sum).
#pragma once

#include "core/tape.h"
#include "kernels/kernel.h"

namespace lt2 {

struct AddRmsNormForwardArgs {
  Tensor x, residual, w, sum, y, rstd;  // [N, D], [N, D], [D], [N, D], [N, D], [N]
  double eps = 0;
};
LT2_KERNEL(AddRmsNormForward, AddRmsNormForwardArgs)
// Backward is RmsNormBackward with the gradient of the sum going through.

struct SumAndNorm {
  Var sum, normed;
};
// x, residual [..., D], w [D]. The gradients of x and residual are one tensor, never copied.
SumAndNorm AddRmsNorm(Tape& tape, Var x, Var residual, Param& w, double eps);

}  // namespace lt2
