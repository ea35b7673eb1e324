#include "kernels/activation.h"

namespace lt2 {

Cost CostOf(const ActivateForwardArgs& args) {
  return {.flops = 4.0 * args.x.size(), .bytes = 2.0 * args.x.bytes()};
}

Cost CostOf(const ActivateBackwardArgs& args) {
  return {.flops = 5.0 * args.x.size(), .bytes = (args.accumulate_dx ? 4.0 : 3.0) * args.x.bytes()};
}

namespace {

Var Activate(Tape& tape, const char* name, Var x, Activation kind, double factor) {
  Stream& stream = tape.stream();
  const DType dtype = x.value.dtype();
  const bool decay = kind == Activation::kLogSigmoid;
  const DType of_y = decay ? AccumulatorOf(dtype) : dtype;
  const Var y = tape.Make([&stream, x = tape.Save(x), of_y, kind, factor] {
    const Tensor from = x.get(), to = Tensor::Empty(from.shape(), of_y, from.device());
    ActivateForward(stream, {.x = from, .y = to, .kind = kind, .factor = factor});
    return to;
  });
  return tape.Record({x}, y,
                     {.name = name,
                      .input_grad = [&stream, x = tape.Save(x), kind, factor](
                                        std::span<const Tensor> dy, std::span<GradSlot> dx) {
                        const bool accumulate = dx[0].accumulate();
                        ActivateBackward(stream, {.dy = dy[0],
                                                  .x = x.get(),
                                                  .dx = dx[0].to(),
                                                  .kind = kind,
                                                  .factor = factor,
                                                  .accumulate_dx = accumulate});
                      }});
}

}  // namespace

Var EluPlusOne(Tape& tape, Var x) {
  return Activate(tape, "elu_plus_one", x, Activation::kEluPlusOne, 1);
}

Var Silu(Tape& tape, Var x) { return Activate(tape, "silu", x, Activation::kSilu, 1); }

Var LogSigmoid(Tape& tape, Var x, double factor) {
  return Activate(tape, "log_sigmoid", x, Activation::kLogSigmoid, factor);
}

}  // namespace lt2
