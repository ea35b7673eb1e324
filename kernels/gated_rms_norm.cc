#include "kernels/gated_rms_norm.h"

namespace lt2 {

Cost CostOf(const GatedRmsNormForwardArgs& args) {
  return {.flops = 9.0 * args.x.size(), .bytes = 3.0 * args.x.bytes()};
}

Cost CostOf(const GatedRmsNormBackwardArgs& args) {
  const double others = (args.accumulate_dx ? 1 : 0) + (args.accumulate_dgate ? 1 : 0);
  return {.flops = 20.0 * args.x.size(), .bytes = (5.0 + others) * args.x.bytes()};
}

Var GatedRmsNorm(Tape& tape, Var x, Var gate, Param& w, double eps, GateKind kind) {
  CHECK_EQ(x.shape().size(), gate.shape().size()) << x.shape() << " and " << gate.shape();
  CHECK_EQ(x.shape().back() % w.value.size(), 0) << w.spec.name << " and " << x.shape();
  Stream& stream = tape.stream();
  const DType dtype = x.value.dtype();
  Tensor rstd =
      Tensor::Empty({x.shape().size() / w.value.size()}, AccumulatorOf(dtype), tape.device());
  const Var y = tape.Make([&stream, &w, x = tape.Save(x), gate = tape.Save(gate), rstd, eps, kind] {
    const Tensor from = x.get(), to = Tensor::Empty(from.shape(), from.dtype(), from.device());
    GatedRmsNormForward(stream, {.x = from,
                                 .gate = gate.get(),
                                 .w = w.value,
                                 .y = to,
                                 .rstd = rstd,
                                 .eps = eps,
                                 .kind = kind});
    return to;
  });
  return tape.Record({x, gate}, y,
                     {.name = "gated_rms_norm",
                      .params = {&w},
                      .input_grad = [&stream, &w, x = tape.Save(x), gate = tape.Save(gate), rstd,
                                     kind](std::span<const Tensor> dy, std::span<GradSlot> dx) {
                        const bool accumulate_dx = dx[0].accumulate();
                        const Tensor to_dx = dx[0].to();
                        const bool accumulate_dgate = dx[1].accumulate();
                        GatedRmsNormBackward(stream, {.dy = dy[0],
                                                      .x = x.get(),
                                                      .gate = gate.get(),
                                                      .w = w.value,
                                                      .rstd = rstd,
                                                      .dx = to_dx,
                                                      .dgate = dx[1].to(),
                                                      .dw = w.main_grad,
                                                      .kind = kind,
                                                      .accumulate_dx = accumulate_dx,
                                                      .accumulate_dgate = accumulate_dgate});
                      }});
}

}  // namespace lt2
