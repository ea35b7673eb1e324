#include "kernels/short_conv.h"

namespace lt2 {
namespace {

Tensor ValueOf(const Param* param) { return param != nullptr ? param->value : Tensor(); }

// Multiply-adds of the taps; the activation's few operations are not counted.
double TapFlops(const Tensor& x, const Tensor& w) {
  return 2.0 * static_cast<double>(x.size() * w.dim(1));
}

}  // namespace

Cost CostOf(const ShortConvForwardArgs& a) {
  return {.flops = TapFlops(a.x_NC, a.w_CW), .bytes = 2.0 * static_cast<double>(a.x_NC.bytes())};
}

Cost CostOf(const ShortConvBackwardArgs& a) {
  return {.flops = 3 * TapFlops(a.x_NC, a.w_CW),
          .bytes = 3.0 * static_cast<double>(a.x_NC.bytes())};
}

Cost CostOf(const ShortConvTailArgs& a) {
  return {.flops = 0, .bytes = 2.0 * static_cast<double>(a.tail_out_DPC.bytes())};
}

Cost CostOf(const ShortConvStepArgs& a) {
  return {.flops = TapFlops(a.x_BC, a.w_CW),
          .bytes = 2.0 * static_cast<double>(a.x_BC.bytes() + a.tail_BPC.bytes())};
}

Var ShortConv(Tape& tape, const Var& x_NC, Param& w_CW, Param* bias_C, bool silu,
              const Documents& documents, const Tensor& tail_DPC) {
  const Tensor& x = x_NC.value;
  CHECK_EQ(x.shape().rank(), 2);
  CHECK_EQ(x.dim(0), documents.tokens());
  CHECK_EQ(w_CW.value.dim(0), x.dim(1));
  if (bias_C != nullptr) CHECK_EQ(bias_C->value.size(), x.dim(1));
  if (tail_DPC.defined()) {
    CHECK_EQ(tail_DPC.shape(), (Shape{documents.capacity(), w_CW.value.dim(1) - 1, x.dim(1)}));
  }
  const Var y = tape.Make(
      [&stream = tape.stream(), x = tape.Save(x_NC), &w_CW, bias_C, silu, documents, tail_DPC] {
        const Tensor from = x.get(), to = Tensor::Empty(from.shape(), from.dtype(), from.device());
        ShortConvForward(stream, {.x_NC = from,
                                  .w_CW = w_CW.value,
                                  .bias_C = ValueOf(bias_C),
                                  .tail_DPC = tail_DPC,
                                  .silu = silu,
                                  .documents = documents,
                                  .y_NC = to});
        return to;
      });
  Node node{.name = "short_conv", .params = {&w_CW}};
  if (bias_C != nullptr) node.params.push_back(bias_C);
  node.input_grad = [&stream = tape.stream(), x = tape.Save(x_NC), &w_CW, bias_C, silu, documents,
                     tail_DPC](std::span<const Tensor> dy, std::span<GradSlot> dx) {
    const bool accumulate = dx[0].accumulate();
    ShortConvBackward(stream, {.x_NC = x.get(),
                               .w_CW = w_CW.value,
                               .bias_C = ValueOf(bias_C),
                               .tail_DPC = tail_DPC,
                               .silu = silu,
                               .documents = documents,
                               .dy_NC = dy[0],
                               .dx_NC = dx[0].to(),
                               .accumulate_dx = accumulate,
                               .dw_CW = w_CW.main_grad,
                               .dbias_C = bias_C != nullptr ? bias_C->main_grad : Tensor()});
  };
  return tape.Record({x_NC}, y, std::move(node));
}

}  // namespace lt2
