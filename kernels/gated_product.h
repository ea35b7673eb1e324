// An elementwise product with an activated gate: y = x * act(gate).
//
// SwiGLU's middle (swish), the output gate of attention (sigmoid) and plain products use it.
#pragma once

#include "core/tape.h"
#include "kernels/kernel.h"

namespace lt2 {

enum class GateKind : uint8_t { kSwish, kSigmoid, kNone };  // gate σ(gate), σ(gate), or gate

struct GatedProductForwardArgs {
  Tensor x, gate, y;  // one shape
  GateKind kind = GateKind::kSwish;
};
// dx = dy act(gate), dgate = dy x act'(gate). dx may be where dy is.
struct GatedProductBackwardArgs {
  Tensor dy, x, gate, dx, dgate;
  GateKind kind = GateKind::kSwish;
  bool accumulate_dx = false, accumulate_dgate = false;
};
LT2_KERNEL(GatedProductForward, GatedProductForwardArgs)
LT2_KERNEL(GatedProductBackward, GatedProductBackwardArgs)

Var SwiGlu(Tape& tape, Var gate, Var up);      // up * gate σ(gate)
Var SigmoidGate(Tape& tape, Var x, Var gate);  // x * σ(gate)
Var Product(Tape& tape, Var a, Var b);         // a * b

}  // namespace lt2
