#include "kernels/rms_norm.h"

namespace lt2 {

Cost CostOf(const RmsNormForwardArgs& args) {
  return {.flops = 4.0 * args.x.size(), .bytes = 2.0 * args.x.bytes()};
}

Cost CostOf(const RmsNormBackwardArgs& args) {
  const double others = (args.through.defined() ? 1 : 0) + (args.accumulate_dx ? 1 : 0);
  return {.flops = 9.0 * args.x.size(), .bytes = (3.0 + others) * args.x.bytes()};
}

Var RmsNorm(Tape& tape, Var x, Param& w, double eps, int64_t group) {
  const int64_t width = w.value.size();
  if (group == 0) group = width;
  CHECK_EQ(x.shape().back(), width) << w.spec.name;
  CHECK_EQ(width % group, 0) << w.spec.name << " in groups of " << group;
  Stream& stream = tape.stream();
  Tensor rstd = Tensor::Empty({x.shape().rows(), width / group}, AccumulatorOf(x.value.dtype()),
                              tape.device());
  const Var y = tape.Make([&stream, &w, x = tape.Save(x), rstd, eps] {
    const Tensor from = x.get(), to = Tensor::Empty(from.shape(), from.dtype(), from.device());
    RmsNormForward(stream, {.x = from, .w = w.value, .y = to, .rstd = rstd, .eps = eps});
    return to;
  });
  return tape.Record({x}, y,
                     {.name = "rms_norm",
                      .params = {&w},
                      .input_grad = [&stream, &w, x = tape.Save(x), rstd](
                                        std::span<const Tensor> dy, std::span<GradSlot> dx) {
                        const bool accumulate = dx[0].accumulate();
                        RmsNormBackward(stream, {.dy = dy[0],
                                                 .x = x.get(),
                                                 .w = w.value,
                                                 .rstd = rstd,
                                                 .dx = dx[0].to(),
                                                 .dw = w.main_grad,
                                                 .accumulate_dx = accumulate});
                      }});
}

}  // namespace lt2
