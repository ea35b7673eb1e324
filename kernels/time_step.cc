#include "kernels/time_step.h"

namespace lt2 {

Cost CostOf(const TimeStepForwardArgs& args) {
  return {.flops = 5.0 * args.a.size(), .bytes = 3.0 * args.a.bytes()};
}

Cost CostOf(const TimeStepBackwardArgs& args) {
  return {.flops = 9.0 * args.a.size(), .bytes = (args.accumulate_da ? 6.0 : 5.0) * args.a.bytes()};
}

StepSizes TimeStep(Tape& tape, Var a, Param& A_log, Param& dt_bias) {
  CHECK_EQ(a.shape().back(), A_log.value.size()) << A_log.spec.name;
  CHECK_EQ(a.shape().back(), dt_bias.value.size()) << dt_bias.spec.name;
  Stream& stream = tape.stream();
  const Tensor dt = Tensor::Empty(a.shape(), a.value.dtype(), tape.device());
  const Tensor g = Tensor::Empty(a.shape(), a.value.dtype(), tape.device());
  TimeStepForward(stream,
                  {.a = a.value, .A_log = A_log.value, .dt_bias = dt_bias.value, .dt = dt, .g = g});
  Node node{.name = "time_step", .params = {&A_log, &dt_bias}};
  node.input_grad = [&stream, &A_log, &dt_bias, a = a.value, g](std::span<const Tensor> dy,
                                                                std::span<GradSlot> dx) {
    const bool accumulate = dx[0].accumulate();
    TimeStepBackward(stream, {.ddt = dy[0],
                              .dg = dy[1],
                              .a = a,
                              .A_log = A_log.value,
                              .dt_bias = dt_bias.value,
                              .g = g,
                              .da = dx[0].to(),
                              .dA_log = A_log.main_grad,
                              .ddt_bias = dt_bias.main_grad,
                              .accumulate_da = accumulate});
  };
  const std::vector<Var> vars = tape.Record(std::vector<Var>{a}, {dt, g}, std::move(node));
  return {.dt = vars[0], .g = vars[1]};
}

}  // namespace lt2
