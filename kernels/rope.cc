#include "kernels/rope.h"

namespace lt2 {

Cost CostOf(const RopeArgs& args) {
  return {.flops = 3.0 * args.x.size(), .bytes = (args.accumulate ? 3.0 : 2.0) * args.x.bytes()};
}

Var Rope(Tape& tape, Var x, const Tensor& positions, const RopeOptions& options) {
  CHECK_EQ(x.shape().rank(), 3);
  CHECK_EQ(x.shape()[0], positions.size());
  CHECK_EQ(x.shape()[2] % 2, 0) << "odd head dimension " << x.shape();
  Stream& stream = tape.stream();
  const auto rotate = [&stream, x = tape.Save(x), positions, options] {
    const Tensor from = x.get(), to = Tensor::Empty(from.shape(), from.dtype(), from.device());
    Rope(stream, {.x = from, .positions = positions, .y = to, .options = options});
    return to;
  };
  // Its own backward does not read x, so only an x that is made again is cheaper than y.
  const Var y = x.source ? tape.Make(rotate) : Var{.value = rotate()};
  return tape.Record({x}, y,
                     {.name = "rope",
                      .input_grad = [&stream, positions, options](std::span<const Tensor> dy,
                                                                  std::span<GradSlot> dx) {
                        if (!dx[0].wanted()) return;
                        const bool accumulate = dx[0].accumulate();
                        Rope(stream, {.x = dy[0],
                                      .positions = positions,
                                      .y = dx[0].to(),
                                      .options = options,
                                      .inverse = true,
                                      .accumulate = accumulate});
                      }});
}

}  // namespace lt2
