// The step size and log-decay of Mamba-type gates, per token and head, or per token and channel
// with one rate for the channels of a head:
//   dt = softplus(a + dt_bias),  g = -exp(A_log) dt <= 0.
//
// softplus(z) is log(1 + exp(z)), and z itself above 20.
#pragma once

#include "core/tape.h"
#include "kernels/kernel.h"

namespace lt2 {

struct DecayGateForwardArgs {
  Tensor a, A_log, dt_bias;  // [N, C], [H], [C] with C = H channels, or a multiple
  Tensor dt, g;              // [N, C]; dt undefined: not wanted
};
// With e = (ddt - exp(A_log) dg) σ(a + dt_bias): da = e, ddt_bias += sum of e, dA_log += sum of
// dg g over tokens (and the head's channels).
struct DecayGateBackwardArgs {
  Tensor ddt, dg;  // undefined: zero
  Tensor a, A_log, dt_bias, g, da, dA_log, ddt_bias;
  bool accumulate_da = false;
};
LT2_KERNEL(DecayGateForward, DecayGateForwardArgs)
LT2_KERNEL(DecayGateBackward, DecayGateBackwardArgs)

// g.
Var DecayGate(Tape& tape, Var a, Param& A_log, Param& dt_bias);

struct StepSizes {
  Var dt, g;
};
StepSizes TimeStep(Tape& tape, Var a, Param& A_log, Param& dt_bias);

}  // namespace lt2
