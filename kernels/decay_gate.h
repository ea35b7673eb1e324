// The log-decay of Mamba-type gates: g = -exp(A_log) softplus(a + dt_bias) <= 0, per token and
// head, or per token and channel with one rate for the channels of a head.
//
// softplus(z) is log(1 + exp(z)), and z itself above 20.
#pragma once

#include "core/tape.h"
#include "kernels/kernel.h"

namespace lt2 {

struct DecayGateForwardArgs {
  Tensor a, A_log, dt_bias, g;  // [N, C], [H], [C], [N, C] with C = H channels, or a multiple
};
// da = -dg exp(A_log) σ(a + dt_bias), ddt_bias += sum of da, dA_log += sum of dg g over tokens (and
// the head's channels).
struct DecayGateBackwardArgs {
  Tensor dg, a, A_log, dt_bias, g, da, dA_log, ddt_bias;
  bool accumulate_da = false;
};
LT2_KERNEL(DecayGateForward, DecayGateForwardArgs)
LT2_KERNEL(DecayGateBackward, DecayGateBackwardArgs)

Var DecayGate(Tape& tape, Var a, Param& A_log, Param& dt_bias);

}  // namespace lt2
