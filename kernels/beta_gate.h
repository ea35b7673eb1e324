// The write strength of delta rules: beta = scale σ(b); scale 2 allows negative eigenvalues.
#pragma once

#include "core/tape.h"
#include "kernels/kernel.h"

namespace lt2 {

struct BetaGateForwardArgs {
  Tensor b, beta;  // one shape
  double scale = 1;
};
// db = dbeta scale σ(b) (1 - σ(b)).
struct BetaGateBackwardArgs {
  Tensor dbeta, b, db;
  double scale = 1;
  bool accumulate_db = false;
};
LT2_KERNEL(BetaGateForward, BetaGateForwardArgs)
LT2_KERNEL(BetaGateBackward, BetaGateBackwardArgs)

Var BetaGate(Tape& tape, Var b, double scale);

}  // namespace lt2
