#include "model/ffn.h"

#include "kernels/gated_product.h"
#include "kernels/linear.h"
#include "model/init.h"

namespace lt2 {

FeedForward::FeedForward(int64_t width, int64_t hidden, const ParamScope& scope)
    : gate_(scope.Add("gate.weight", {hidden, width}, ProjectionInit(width))),
      up_(scope.Add("up.weight", {hidden, width}, ProjectionInit(width))),
      down_(scope.Add("down.weight", {width, hidden}, ProjectionInit(hidden))) {}

Var FeedForward::Forward(Tape& tape, const Var& x_ND, const Var* residual_ND) {
  const Var gate = Linear(tape, x_ND, gate_);
  const Var up = Linear(tape, x_ND, up_);
  const Var hidden = SwiGlu(tape, gate, up);
  return residual_ND == nullptr ? Linear(tape, hidden, down_)
                                : LinearPlus(tape, *residual_ND, hidden, down_);
}

double FeedForward::FlopsPerToken() const {
  return 6 * static_cast<double>(gate_.spec.shape.size());
}

}  // namespace lt2
