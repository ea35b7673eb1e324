#include "kernels/add_bias.h"

#include "kernels/elementwise.h"

namespace lt2 {

Cost CostOf(const AddBiasForwardArgs& args) {
  return {.flops = 1.0 * args.x.size(), .bytes = 2.0 * args.x.bytes()};
}

Cost CostOf(const AddBiasBackwardArgs& args) {
  return {.flops = 1.0 * args.dy.size(), .bytes = 1.0 * args.dy.bytes()};
}

Var AddBias(Tape& tape, Var x, Param& b) {
  CHECK_EQ(x.shape().back(), b.value.size()) << b.spec.name;
  Stream& stream = tape.stream();
  Tensor y = Tensor::Empty(x.shape(), x.value.dtype(), tape.device());
  AddBiasForward(stream, {.x = x.value, .b = b.value, .y = y});
  return tape.Record(
      {x}, y,
      {.name = "add_bias",
       .params = {&b},
       .input_grad = [&stream, &b](std::span<const Tensor> dy, std::span<GradSlot> dx) {
         AddBiasBackward(stream, {.dy = dy[0], .db = b.main_grad});
         PassGradient(stream, dx[0], dy[0]);
       }});
}

}  // namespace lt2
