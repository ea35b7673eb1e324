// An elementwise product with an activated gate: y = x * act(gate).
//
// SwiGLU's middle (swish) and the output gate of attention (sigmoid) are the two users.
#pragma once

#include "core/tape.h"
#include "kernels/kernel.h"

namespace lt2 {

enum class GateKind : uint8_t { kSwish, kSigmoid };  // gate σ(gate), or σ(gate)

struct GatedProductForwardArgs {
  Tensor x, gate, y;  // one shape
  GateKind kind = GateKind::kSwish;
};
// dx = dy act(gate), dgate = dy x act'(gate).
struct GatedProductBackwardArgs {
  Tensor dy, x, gate, dx, dgate;
  GateKind kind = GateKind::kSwish;
  bool accumulate_dx = false, accumulate_dgate = false;
};
LT2_KERNEL(GatedProductForward, GatedProductForwardArgs)
LT2_KERNEL(GatedProductBackward, GatedProductBackwardArgs)

Var SwiGlu(Tape& tape, Var gate, Var up);      // up * gate σ(gate)
Var SigmoidGate(Tape& tape, Var x, Var gate);  // x * σ(gate)

}  // namespace lt2
