// The residual between loops: y = x + rho[loop] * previous, per channel (LT2, arXiv 2605.20670).
#pragma once

#include "core/tape.h"
#include "kernels/kernel.h"

namespace lt2 {

struct LoopResidualForwardArgs {
  Tensor x, previous, rho, y;  // [N, D], [N, D], [D], [N, D]
};
// dprevious = dy * rho, drho += sum over rows of dy * previous; dx is dy itself.
struct LoopResidualBackwardArgs {
  Tensor dy, previous, rho, dprevious, drho;
  bool accumulate_dprevious = false;
};
LT2_KERNEL(LoopResidualForward, LoopResidualForwardArgs)
LT2_KERNEL(LoopResidualBackward, LoopResidualBackwardArgs)

// x, previous [..., D]; rho [loops, D], of which row `loop` is used.
Var LoopResidual(Tape& tape, Var x, Var previous, Param& rho, int loop);

}  // namespace lt2
