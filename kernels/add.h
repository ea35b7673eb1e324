// A residual connection: y = a + b. Both gradients are dy itself, handed on without a copy.
#pragma once

#include "core/tape.h"
#include "kernels/kernel.h"

namespace lt2 {

struct AddArgs {
  Tensor a, b, y;  // one shape
};
LT2_KERNEL(Add, AddArgs)

Var Add(Tape& tape, Var a, Var b);

}  // namespace lt2
