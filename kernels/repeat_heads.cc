#include "kernels/repeat_heads.h"

namespace lt2 {

Cost CostOf(const RepeatHeadsForwardArgs& args) {
  return {.flops = 0, .bytes = 1.0 * args.x.bytes() + args.y.bytes()};
}

Cost CostOf(const RepeatHeadsBackwardArgs& args) {
  return {.flops = 1.0 * args.dy.size(),
          .bytes = args.dy.bytes() + (args.accumulate_dx ? 2.0 : 1.0) * args.dx.bytes()};
}

Var RepeatHeads(Tape& tape, Var x, int64_t heads) {
  CHECK_EQ(x.shape().rank(), 3);
  if (heads == x.shape()[1]) return x;
  CHECK_EQ(heads % x.shape()[1], 0);
  Stream& stream = tape.stream();
  const Var y = tape.Make([&stream, x = tape.Save(x), heads] {
    const Tensor from = x.get();
    const Shape shape = {from.dim(0), heads, from.dim(2)};
    const Tensor to = Tensor::Empty(shape, from.dtype(), from.device());
    RepeatHeadsForward(stream, {.x = from, .y = to});
    return to;
  });
  return tape.Record({x}, y,
                     {.name = "repeat_heads",
                      .input_grad = [&stream](std::span<const Tensor> dy, std::span<GradSlot> dx) {
                        const bool accumulate = dx[0].accumulate();
                        const Tensor to = dx[0].to();
                        RepeatHeadsBackward(stream,
                                            {.dy = dy[0], .dx = to, .accumulate_dx = accumulate});
                      }});
}

}  // namespace lt2
