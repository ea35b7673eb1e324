#include "kernels/loop_residual.h"

#include "kernels/elementwise.h"

namespace lt2 {

Cost CostOf(const LoopResidualForwardArgs& args) {
  return {.flops = 2.0 * args.x.size(), .bytes = 3.0 * args.x.bytes()};
}

Cost CostOf(const LoopResidualBackwardArgs& args) {
  return {.flops = 3.0 * args.dy.size(),
          .bytes = (args.accumulate_dprevious ? 4.0 : 3.0) * args.dy.bytes()};
}

Var LoopResidual(Tape& tape, Var x, Var previous, Param& rho, int loop) {
  CHECK_EQ(x.shape(), previous.shape());
  CHECK_EQ(x.shape().back(), rho.value.dim(1)) << rho.spec.name;
  Stream& stream = tape.stream();
  Tensor y = Tensor::Empty(x.shape(), x.value.dtype(), tape.device());
  const Tensor rho_D = rho.value.Rows(loop, loop + 1);
  LoopResidualForward(stream, {.x = x.value, .previous = previous.value, .rho = rho_D, .y = y});
  return tape.Record({x, previous}, y,
                     {.name = "loop_residual",
                      .params = {&rho},
                      .input_grad = [&stream, &rho, rho_D, previous = tape.Save(previous), loop](
                                        std::span<const Tensor> dy, std::span<GradSlot> dx) {
                        PassGradient(stream, dx[0], dy[0]);
                        const bool accumulate = dx[1].accumulate();
                        LoopResidualBackward(stream, {.dy = dy[0],
                                                      .previous = previous.get(),
                                                      .rho = rho_D,
                                                      .dprevious = dx[1].to(),
                                                      .drho = rho.main_grad.Rows(loop, loop + 1),
                                                      .accumulate_dprevious = accumulate});
                      }});
}

}  // namespace lt2
