// The SwiGLU feed-forward layer: W_down (silu(W_gate x) ⊙ W_up x). Ranks divide the hidden
// channels; the output is then a summand.
#pragma once

#include "core/param_set.h"
#include "core/tape.h"
#include "kernels/row_sums.h"
#include "parallel/tensor_split.h"

namespace lt2 {

class FeedForward {
 public:
  FeedForward(int64_t width, int64_t hidden, const ParamScope& scope, const TensorSplit& split);
  // residual_ND, where there is one, is added to the result.
  Var Forward(Tape& tape, const Var& x_ND, const Var* residual_ND = nullptr);
  // Where ranks have the other hidden channels: of the own rows, those of the sum over ranks.
  Var ForwardSum(Tape& tape, const Var& own_ND, RowSums& sums);
  double FlopsPerToken() const;

 private:
  Param &gate_, &up_, &down_;
};

}  // namespace lt2
