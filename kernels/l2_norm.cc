#include "kernels/l2_norm.h"

namespace lt2 {

Cost CostOf(const L2NormForwardArgs& args) {
  return {.flops = 3.0 * args.x.size(), .bytes = 2.0 * args.x.bytes()};
}

Cost CostOf(const L2NormBackwardArgs& args) {
  return {.flops = 5.0 * args.y.size(), .bytes = (args.accumulate_dx ? 4.0 : 3.0) * args.y.bytes()};
}

Var L2Norm(Tape& tape, Var x, int64_t head_dim, double eps) {
  CHECK_EQ(x.shape().back() % head_dim, 0) << x.shape();
  Stream& stream = tape.stream();
  const DType dtype = x.value.dtype();
  Tensor rho = Tensor::Empty({x.shape().size() / head_dim}, AccumulatorOf(dtype), tape.device());
  const Var y = tape.Make([&stream, x = tape.Save(x), rho, eps] {
    const Tensor from = x.get(), to = Tensor::Empty(from.shape(), from.dtype(), from.device());
    L2NormForward(stream, {.x = from, .y = to, .rho = rho, .eps = eps});
    return to;
  });
  return tape.Record({x}, y,
                     {.name = "l2_norm",
                      .input_grad = [&stream, y = tape.Save(y), rho](std::span<const Tensor> dy,
                                                                     std::span<GradSlot> dx) {
                        const bool accumulate = dx[0].accumulate();
                        L2NormBackward(stream, {.dy = dy[0],
                                                .y = y.get(),
                                                .rho = rho,
                                                .dx = dx[0].to(),
                                                .accumulate_dx = accumulate});
                      }});
}

}  // namespace lt2
