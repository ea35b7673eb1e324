#include "kernels/layer_norm.h"

namespace lt2 {

Cost CostOf(const LayerNormForwardArgs& args) {
  return {.flops = 7.0 * args.x.size(), .bytes = 2.0 * args.x.bytes()};
}

Cost CostOf(const LayerNormBackwardArgs& args) {
  return {.flops = 14.0 * args.x.size(),
          .bytes = (args.accumulate_dx ? 4.0 : 3.0) * args.x.bytes()};
}

Var LayerNorm(Tape& tape, Var x_NC, Param& w_C, int64_t group, double eps) {
  CHECK_EQ(x_NC.shape().back(), w_C.value.size()) << w_C.spec.name;
  CHECK_EQ(w_C.value.size() % group, 0) << w_C.spec.name << " in groups of " << group;
  Stream& stream = tape.stream();
  const DType dtype = x_NC.value.dtype();
  const Shape groups = {x_NC.shape().rows(), w_C.value.size() / group};
  Tensor mean = Tensor::Empty(groups, AccumulatorOf(dtype), tape.device());
  Tensor rstd = Tensor::Empty(groups, AccumulatorOf(dtype), tape.device());
  const Var y = tape.Make([&stream, &w_C, x = tape.Save(x_NC), mean, rstd, eps] {
    const Tensor from = x.get(), to = Tensor::Empty(from.shape(), from.dtype(), from.device());
    LayerNormForward(stream,
                     {.x = from, .w = w_C.value, .y = to, .mean = mean, .rstd = rstd, .eps = eps});
    return to;
  });
  return tape.Record({x_NC}, y,
                     {.name = "layer_norm",
                      .params = {&w_C},
                      .input_grad = [&stream, &w_C, x = tape.Save(x_NC), mean, rstd](
                                        std::span<const Tensor> dy, std::span<GradSlot> dx) {
                        const bool accumulate = dx[0].accumulate();
                        LayerNormBackward(stream, {.dy = dy[0],
                                                   .x = x.get(),
                                                   .w = w_C.value,
                                                   .mean = mean,
                                                   .rstd = rstd,
                                                   .dx = dx[0].to(),
                                                   .dw = w_C.main_grad,
                                                   .accumulate_dx = accumulate});
                      }});
}

}  // namespace lt2
