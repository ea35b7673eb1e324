#include "model/ffn.h"

#include "kernels/swiglu_ffn.h"
#include "model/init.h"

namespace lt2 {

FeedForward::FeedForward(int64_t width, int64_t hidden, const ParamScope& scope,
                         const TensorSplit& split)
    : gate_(scope.Add("gate.weight", {hidden, width}, ProjectionInit(width), /*decay=*/true,
                      SplitRows(split.ranks))),
      up_(scope.Add("up.weight", {hidden, width}, ProjectionInit(width), /*decay=*/true,
                    SplitRows(split.ranks))),
      down_(scope.Add("down.weight", {width, hidden}, ProjectionInit(hidden), /*decay=*/true,
                      SplitColumns(split.ranks))) {}

Var FeedForward::Forward(Tape& tape, const Var& x_ND, const Var* residual_ND) {
  return SwiGluFfn(tape, x_ND, gate_, up_, down_, residual_ND);
}

Var FeedForward::ForwardSum(Tape& tape, const Var& own_ND, RowSums& sums) {
  return SwiGluFfnSum(tape, own_ND, gate_, up_, down_, sums);
}

double FeedForward::FlopsPerToken() const {
  return 6 * static_cast<double>(gate_.spec.shape.size());
}

}  // namespace lt2
