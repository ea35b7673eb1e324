#include "kernels/head_scale.h"

#include "kernels/elementwise.h"

namespace lt2 {

Cost CostOf(const HeadScaleForwardArgs& args) {
  const double streams = args.o_NHP.defined() ? 3 : 2;
  return {.flops = (streams - 1) * args.x_NHP.size(), .bytes = streams * args.x_NHP.bytes()};
}

Cost CostOf(const HeadScaleBackwardArgs& args) {
  return {.flops = 3.0 * args.x_NHP.size(),
          .bytes = (args.accumulate_dx ? 4.0 : 3.0) * args.x_NHP.bytes()};
}

Var HeadScale(Tape& tape, Var x_NHP, Var s_NH) {
  CHECK_EQ(s_NH.shape(), (Shape{x_NHP.value.dim(0), x_NHP.value.dim(1)}));
  Stream& stream = tape.stream();
  const Var y = tape.Make([&stream, x = tape.Save(x_NHP), s = tape.Save(s_NH)] {
    const Tensor from = x.get(), to = Tensor::Empty(from.shape(), from.dtype(), from.device());
    HeadScaleForward(stream, {.x_NHP = from, .s = s.get(), .o_NHP = {}, .y_NHP = to});
    return to;
  });
  return tape.Record({x_NHP, s_NH}, y,
                     {.name = "head_scale",
                      .input_grad = [&stream, x = tape.Save(x_NHP), s = tape.Save(s_NH)](
                                        std::span<const Tensor> dy, std::span<GradSlot> dx) {
                        const bool accumulate_dx = dx[0].accumulate();
                        const Tensor to_dx = dx[0].to();
                        const bool accumulate_ds = dx[1].accumulate();
                        HeadScaleBackward(stream, {.dy_NHP = dy[0],
                                                   .x_NHP = x.get(),
                                                   .s = s.get(),
                                                   .dx_NHP = to_dx,
                                                   .ds = dx[1].to(),
                                                   .accumulate_dx = accumulate_dx,
                                                   .accumulate_ds = accumulate_ds});
                      }});
}

Var HeadSkip(Tape& tape, Var o_NHP, Var x_NHP, Param& s_H) {
  CHECK_EQ(o_NHP.shape(), x_NHP.shape());
  CHECK_EQ(s_H.value.size(), x_NHP.value.dim(1)) << s_H.spec.name;
  Stream& stream = tape.stream();
  Tensor y = Tensor::Empty(x_NHP.shape(), x_NHP.value.dtype(), tape.device());
  HeadScaleForward(stream,
                   {.x_NHP = x_NHP.value, .s = s_H.value, .o_NHP = o_NHP.value, .y_NHP = y});
  return tape.Record({o_NHP, x_NHP}, y,
                     {.name = "head_skip",
                      .params = {&s_H},
                      .input_grad = [&stream, &s_H, x = tape.Save(x_NHP)](
                                        std::span<const Tensor> dy, std::span<GradSlot> dx) {
                        const bool accumulate = dx[1].accumulate();
                        HeadScaleBackward(stream, {.dy_NHP = dy[0],
                                                   .x_NHP = x.get(),
                                                   .s = s_H.value,
                                                   .dx_NHP = dx[1].to(),
                                                   .ds = s_H.main_grad,
                                                   .accumulate_dx = accumulate});
                        PassGradient(stream, dx[0], dy[0]);
                      }});
}

}  // namespace lt2
