// Heads of keys or values that several query heads share, written out once for each of them: head h
// of y is head h / R of x.
#pragma once

#include "core/tape.h"
#include "kernels/kernel.h"

namespace lt2 {

struct RepeatHeadsForwardArgs {
  Tensor x, y;  // [N, H, K], [N, H R, K]
};
// dx of a head: the sum of dy over its R copies, in their order.
struct RepeatHeadsBackwardArgs {
  Tensor dy, dx;
  bool accumulate_dx = false;
};
LT2_KERNEL(RepeatHeadsForward, RepeatHeadsForwardArgs)
LT2_KERNEL(RepeatHeadsBackward, RepeatHeadsBackwardArgs)

// x [N, H, K] -> [N, heads, K], heads a multiple of H; x itself where they are equal.
Var RepeatHeads(Tape& tape, Var x, int64_t heads);

}  // namespace lt2
