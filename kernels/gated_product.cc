#include "kernels/gated_product.h"

namespace lt2 {

Cost CostOf(const GatedProductForwardArgs& args) {
  return {.flops = 5.0 * args.x.size(), .bytes = 3.0 * args.x.bytes()};
}

Cost CostOf(const GatedProductBackwardArgs& args) {
  const double others = (args.accumulate_dx ? 1 : 0) + (args.accumulate_dgate ? 1 : 0);
  return {.flops = 10.0 * args.x.size(), .bytes = (5.0 + others) * args.x.bytes()};
}

namespace {

Var GatedProduct(Tape& tape, const char* name, Var x, Var gate, GateKind kind) {
  CHECK_EQ(x.shape().size(), gate.shape().size()) << x.shape() << " and " << gate.shape();
  Stream& stream = tape.stream();
  const Var y = tape.Make([&stream, x = tape.Save(x), gate = tape.Save(gate), kind] {
    const Tensor from = x.get(), to = Tensor::Empty(from.shape(), from.dtype(), from.device());
    GatedProductForward(stream, {.x = from, .gate = gate.get(), .y = to, .kind = kind});
    return to;
  });
  return tape.Record({x, gate}, y,
                     {.name = name,
                      .input_grad = [&stream, x = tape.Save(x), gate = tape.Save(gate), kind](
                                        std::span<const Tensor> dy, std::span<GradSlot> dx) {
                        // In this order: x and gate may be one value, and the second slot then
                        // adds.
                        const bool accumulate_dx = dx[0].accumulate();
                        const Tensor to_dx = dx[0].to();
                        const bool accumulate_dgate = dx[1].accumulate();
                        GatedProductBackward(stream, {.dy = dy[0],
                                                      .x = x.get(),
                                                      .gate = gate.get(),
                                                      .dx = to_dx,
                                                      .dgate = dx[1].to(),
                                                      .kind = kind,
                                                      .accumulate_dx = accumulate_dx,
                                                      .accumulate_dgate = accumulate_dgate});
                      }});
}

}  // namespace

Var SwiGlu(Tape& tape, Var gate, Var up) {
  return GatedProduct(tape, "swiglu", up, gate, GateKind::kSwish);
}

Var SigmoidGate(Tape& tape, Var x, Var gate) {
  return GatedProduct(tape, "sigmoid_gate", x, gate, GateKind::kSigmoid);
}

Var Product(Tape& tape, Var a, Var b) {
  return GatedProduct(tape, "product", a, b, GateKind::kNone);
}

}  // namespace lt2
