// Elementwise functions of one value, times a constant: y = factor f(x).
#pragma once

#include "core/tape.h"
#include "kernels/kernel.h"

namespace lt2 {

enum class Activation : uint8_t {
  kEluPlusOne,  // x + 1 above 0, exp(x) below: a positive feature map
  kSilu,        // x σ(x)
  kLogSigmoid,  // log σ(x) = min(x, 0) - log(1 + exp(-|x|)): a log-decay
};

struct ActivateForwardArgs {
  Tensor x, y;  // one shape
  Activation kind = Activation::kEluPlusOne;
  double factor = 1;
};
// dx = dy factor f'(x): 1 or exp(x); σ(x) (1 + x σ(-x)); σ(-x).
struct ActivateBackwardArgs {
  Tensor dy, x, dx;
  Activation kind = Activation::kEluPlusOne;
  double factor = 1;
  bool accumulate_dx = false;
};
LT2_KERNEL(ActivateForward, ActivateForwardArgs)
LT2_KERNEL(ActivateBackward, ActivateBackwardArgs)

Var EluPlusOne(Tape& tape, Var x);
Var Silu(Tape& tape, Var x);
Var LogSigmoid(Tape& tape, Var x, double factor);

}  // namespace lt2
