// Mamba2's step size and the log-decay that follows from it, per token and head:
//   dt = softplus(a + dt_bias),  g = -exp(A_log) dt <= 0.
//
// softplus(z) is log(1 + exp(z)), and z itself above 20.
#pragma once

#include "core/tape.h"
#include "kernels/kernel.h"

namespace lt2 {

struct TimeStepForwardArgs {
  Tensor a, A_log, dt_bias, dt, g;  // [N, H], [H], [H], [N, H], [N, H]
};
// With e = (ddt - exp(A_log) dg) σ(a + dt_bias): da = e, ddt_bias += sum of e, dA_log += sum of
// dg g over tokens.
struct TimeStepBackwardArgs {
  Tensor ddt, dg;  // undefined: zero
  Tensor a, A_log, dt_bias, g, da, dA_log, ddt_bias;
  bool accumulate_da = false;
};
LT2_KERNEL(TimeStepForward, TimeStepForwardArgs)
LT2_KERNEL(TimeStepBackward, TimeStepBackwardArgs)

struct StepSizes {
  Var dt, g;
};
StepSizes TimeStep(Tape& tape, Var a, Param& A_log, Param& dt_bias);

}  // namespace lt2
