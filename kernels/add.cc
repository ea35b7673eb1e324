#include "kernels/add.h"

#include "kernels/elementwise.h"

namespace lt2 {

Cost CostOf(const AddArgs& args) {
  return {.flops = 1.0 * args.y.size(), .bytes = 3.0 * args.y.bytes()};
}

Var Add(Tape& tape, Var a, Var b) {
  CHECK_EQ(a.shape().size(), b.shape().size()) << a.shape() << " and " << b.shape();
  Stream& stream = tape.stream();
  Tensor y = Tensor::Empty(a.shape(), a.value.dtype(), tape.device());
  Add(stream, {.a = a.value, .b = b.value, .y = y});
  return tape.Record(
      {a, b}, y,
      {.name = "add", .input_grad = [&stream](std::span<const Tensor> dy, std::span<GradSlot> dx) {
         PassGradient(stream, dx[0], dy[0]);
         PassGradient(stream, dx[1], dy[0]);
       }});
}

}  // namespace lt2
