#include "kernels/beta_gate.h"

namespace lt2 {

Cost CostOf(const BetaGateForwardArgs& args) {
  return {.flops = 4.0 * args.b.size(), .bytes = 2.0 * args.b.bytes()};
}

Cost CostOf(const BetaGateBackwardArgs& args) {
  return {.flops = 7.0 * args.b.size(), .bytes = (args.accumulate_db ? 4.0 : 3.0) * args.b.bytes()};
}

Var BetaGate(Tape& tape, Var b, double scale) {
  Stream& stream = tape.stream();
  Tensor beta = Tensor::Empty(b.shape(), AccumulatorOf(b.value.dtype()), tape.device());
  BetaGateForward(stream, {.b = b.value, .beta = beta, .scale = scale});
  return tape.Record({b}, beta,
                     {.name = "beta_gate",
                      .input_grad = [&stream, b = tape.Save(b), scale](
                                        std::span<const Tensor> dbeta, std::span<GradSlot> dx) {
                        const bool accumulate = dx[0].accumulate();
                        BetaGateBackward(stream, {.dbeta = dbeta[0],
                                                  .b = b.get(),
                                                  .db = dx[0].to(),
                                                  .scale = scale,
                                                  .accumulate_db = accumulate});
                      }});
}

}  // namespace lt2
