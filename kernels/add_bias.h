// A bias per column: y = x + b.
#pragma once

#include "core/tape.h"
#include "kernels/kernel.h"

namespace lt2 {

struct AddBiasForwardArgs {
  Tensor x, b, y;  // [N, C], [C], [N, C]
};
// db += sum of dy over rows.
struct AddBiasBackwardArgs {
  Tensor dy, db;
};
LT2_KERNEL(AddBiasForward, AddBiasForwardArgs)
LT2_KERNEL(AddBiasBackward, AddBiasBackwardArgs)

// x [..., C], b [C].
Var AddBias(Tape& tape, Var x, Param& b);

}  // namespace lt2
