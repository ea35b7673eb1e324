// L2 normalisation of each head: y = x ρ, ρ = (sum(x²) + eps)^(-1/2) over head_dim channels.
#pragma once

#include "core/tape.h"
#include "kernels/kernel.h"

namespace lt2 {

struct L2NormForwardArgs {
  Tensor x, y, rho;  // [N, C], [N, C], [N · C / head_dim]
  double eps = 0;
};
// dx = ρ (dy - y (dy · y)).
struct L2NormBackwardArgs {
  Tensor dy, y, rho, dx;
  bool accumulate_dx = false;
};
LT2_KERNEL(L2NormForward, L2NormForwardArgs)
LT2_KERNEL(L2NormBackward, L2NormBackwardArgs)

// x [..., C] with head_dim dividing C.
Var L2Norm(Tape& tape, Var x, int64_t head_dim, double eps);

}  // namespace lt2
