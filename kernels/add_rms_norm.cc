#include "kernels/add_rms_norm.h"

#include "kernels/elementwise.h"
#include "kernels/rms_norm.h"

namespace lt2 {

Cost CostOf(const AddRmsNormForwardArgs& args) {
  return {.flops = 5.0 * args.x.size(), .bytes = 4.0 * args.x.bytes()};
}

namespace {

InputGrad Backward(Stream& stream, Param& w, Tensor sum, Tensor rstd) {
  return [&stream, &w, sum, rstd](std::span<const Tensor> dy, std::span<GradSlot> dx) {
    const Tensor &dsum = dy[0], &dnormed = dy[1];
    Tensor total = dsum;
    if (dnormed.defined()) {
      if (dx[0].wanted() || dx[1].wanted()) {
        total = Tensor::Empty(sum.shape(), sum.dtype(), sum.device());
      }
      RmsNormBackward(stream, {.dy = dnormed,
                               .x = sum,
                               .w = w.value,
                               .rstd = rstd,
                               .dx = total,
                               .dw = w.main_grad,
                               .through = dsum});
    }
    PassGradient(stream, dx[0], total);
    PassGradient(stream, dx[1], total);
  };
}

}  // namespace

SumAndNorm AddRmsNorm(Tape& tape, Var x, Var residual, Param& w, double eps) {
  CHECK_EQ(x.shape().back(), w.value.size()) << w.spec.name;
  CHECK_EQ(x.shape(), residual.shape());
  Stream& stream = tape.stream();
  Tensor sum = Tensor::Empty(x.shape(), x.value.dtype(), tape.device());
  Tensor y = Tensor::Empty(x.shape(), x.value.dtype(), tape.device());
  Tensor rstd = Tensor::Empty({x.shape().rows()}, AccumulatorOf(x.value.dtype()), tape.device());
  AddRmsNormForward(stream, {.x = x.value,
                             .residual = residual.value,
                             .w = w.value,
                             .sum = sum,
                             .y = y,
                             .rstd = rstd,
                             .eps = eps});
  const Var in[] = {x, residual};
  // The norm alone gives the same bits.
  const Var normed = tape.Made(y, [&stream, &w, sum, rstd, eps] {
    Tensor again = Tensor::Empty(sum.shape(), sum.dtype(), sum.device());
    RmsNormForward(stream, {.x = sum, .w = w.value, .y = again, .rstd = rstd, .eps = eps});
    return again;
  });
  std::vector<Var> out = tape.Record(
      in, std::vector<Var>{{.value = sum}, normed},
      {.name = "add_rms_norm", .params = {&w}, .input_grad = Backward(stream, w, sum, rstd)});
  return {.sum = out[0], .normed = out[1]};
}

}  // namespace lt2
