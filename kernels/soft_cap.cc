#include "kernels/soft_cap.h"

namespace lt2 {

Cost CostOf(const SoftCapForwardArgs& args) {
  return {.flops = 4.0 * args.x.size(), .bytes = 2.0 * args.x.bytes()};
}

Cost CostOf(const SoftCapBackwardArgs& args) {
  return {.flops = 5.0 * args.y.size(), .bytes = (args.accumulate_dx ? 4.0 : 3.0) * args.y.bytes()};
}

Var SoftCap(Tape& tape, Var x_NC, Param& b_C, double cap) {
  CHECK_EQ(x_NC.shape().back(), b_C.value.size()) << b_C.spec.name;
  CHECK_GT(cap, 0) << b_C.spec.name;
  Stream& stream = tape.stream();
  const DType dtype = AccumulatorOf(x_NC.value.dtype());  // gates are made from it
  Tensor y = Tensor::Empty(x_NC.shape(), dtype, tape.device());
  SoftCapForward(stream, {.x = x_NC.value, .b = b_C.value, .y = y, .cap = cap});
  return tape.Record(
      {x_NC}, y,
      {.name = "soft_cap",
       .params = {&b_C},
       .input_grad = [&stream, &b_C, y, cap](std::span<const Tensor> dy, std::span<GradSlot> dx) {
         const bool accumulate = dx[0].accumulate();
         SoftCapBackward(stream, {.dy = dy[0],
                                  .y = y,
                                  .dx = dx[0].to(),
                                  .db = b_C.main_grad,
                                  .cap = cap,
                                  .accumulate_dx = accumulate});
       }});
}

}  // namespace lt2
