// Rows of heads times one number each: y = s x per token and head, or y = o + s x with one s a
// head for all tokens.
#pragma once

#include "core/tape.h"
#include "kernels/kernel.h"

namespace lt2 {

struct HeadScaleForwardArgs {
  Tensor x_NHP, s;  // s [N, H], or [H] for all tokens
  Tensor o_NHP;     // added; undefined: nothing
  Tensor y_NHP;
};
// dx = s dy, ds = sum over P (and over tokens, where s is [H]) of dy x.
struct HeadScaleBackwardArgs {
  Tensor dy_NHP, x_NHP, s, dx_NHP;
  Tensor ds;
  bool accumulate_dx = false;
  bool accumulate_ds = false;  // where s is [N, H]; a parameter's gradient is always added to
};
LT2_KERNEL(HeadScaleForward, HeadScaleForwardArgs)
LT2_KERNEL(HeadScaleBackward, HeadScaleBackwardArgs)

Var HeadScale(Tape& tape, Var x_NHP, Var s_NH);
Var HeadSkip(Tape& tape, Var o_NHP, Var x_NHP, Param& s_H);  // o + s x

}  // namespace lt2
