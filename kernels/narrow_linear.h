// Projections of one input to a few outputs a token each, y_i = x w_iᵀ: what gates are made from.
//
// A product of so few columns only waits for x, so that on a GPU all of them read x together, in
// the forward and for the weights' gradients, and write its gradient once.
#pragma once

#include <vector>

#include "core/tape.h"
#include "kernels/kernel.h"

namespace lt2 {

// x [..., I], w_i [O_i, I], y_i [..., O_i].
struct NarrowLinearForwardArgs {
  Tensor x;
  std::vector<Tensor> w, y;
};
// dx = or += the sum of dy_i w_i.
struct NarrowLinearInputArgs {
  std::vector<Tensor> dy, w;
  Tensor dx;
  bool accumulate_dx = false;
};
// dw_i += dy_iᵀ x.
struct NarrowLinearWeightArgs {
  Tensor x;
  std::vector<Tensor> dy, dw;
};
// Both of them, from one reading of x.
struct NarrowLinearBackwardArgs {
  Tensor x;
  std::vector<Tensor> dy, w;
  Tensor dx;
  bool accumulate_dx = false;
  std::vector<Tensor> dw;

  NarrowLinearInputArgs input() const {
    return {.dy = dy, .w = w, .dx = dx, .accumulate_dx = accumulate_dx};
  }
  NarrowLinearWeightArgs weight() const { return {.x = x, .dy = dy, .dw = dw}; }
};
LT2_KERNEL(NarrowLinearForward, NarrowLinearForwardArgs)
LT2_KERNEL(NarrowLinearInput, NarrowLinearInputArgs)
LT2_KERNEL(NarrowLinearWeight, NarrowLinearWeightArgs)
LT2_KERNEL(NarrowLinearBackward, NarrowLinearBackwardArgs)

// The same as products of their own, in the order given.
void NarrowLinearInParts(Stream& stream, const NarrowLinearForwardArgs& args);
void NarrowLinearInParts(Stream& stream, const NarrowLinearInputArgs& args);
void NarrowLinearInParts(Stream& stream, const NarrowLinearWeightArgs& args);

// x [..., I], w_i [O_i, I] -> y_i [..., O_i]. Any O_i are right; 64 outputs in all are fast. Weight
// gradients can be deferred.
std::vector<Var> NarrowLinear(Tape& tape, const Var& x, const std::vector<Param*>& w);

}  // namespace lt2
