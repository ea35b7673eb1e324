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
  Tensor y = Tensor::Empty(x.shape(), decay ? AccumulatorOf(dtype) : dtype, tape.device());
  ActivateForward(stream, {.x = x.value, .y = y, .kind = kind, .factor = factor});
  return tape.Record({x}, y,
                     {.name = name,
                      .input_grad = [&stream, x = x.value, kind, factor](std::span<const Tensor> dy,
                                                                         std::span<GradSlot> dx) {
                        const bool accumulate = dx[0].accumulate();
                        ActivateBackward(stream, {.dy = dy[0],
                                                  .x = x,
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
