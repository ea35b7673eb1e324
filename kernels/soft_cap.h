// A projection's bias and a bound on its size: y = cap tanh((x + b) / cap), as the gates of xLSTM
// have it.
#pragma once

#include "core/tape.h"
#include "kernels/kernel.h"

namespace lt2 {

struct SoftCapForwardArgs {
  Tensor x, b, y;  // [N, C], [C], [N, C]
  double cap = 1;
};
// dx = dy (1 - (y / cap)²), db = the sum of dx over rows.
struct SoftCapBackwardArgs {
  Tensor dy, y, dx, db;
  double cap = 1;
  bool accumulate_dx = false;
};
LT2_KERNEL(SoftCapForward, SoftCapForwardArgs)
LT2_KERNEL(SoftCapBackward, SoftCapBackwardArgs)

Var SoftCap(Tape& tape, Var x_NC, Param& b_C, double cap);

}  // namespace lt2
