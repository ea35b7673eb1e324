// The SwiGLU feed-forward layer: W_down (silu(W_gate x) ⊙ W_up x).
#pragma once

#include "core/param_set.h"
#include "core/tape.h"

namespace lt2 {

class FeedForward {
 public:
  FeedForward(int64_t width, int64_t hidden, const ParamScope& scope);
  // `rebuild`: a tape that rebuilds makes the gate and up products again in backward.
  Var Forward(Tape& tape, const Var& x_ND, bool rebuild = false);
  double FlopsPerToken() const;

 private:
  Param &gate_, &up_, &down_;
};

}  // namespace lt2
