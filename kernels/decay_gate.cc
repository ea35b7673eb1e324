#include "kernels/decay_gate.h"

namespace lt2 {

Cost CostOf(const DecayGateForwardArgs& args) {
  return {.flops = 5.0 * args.a.size(), .bytes = 2.0 * args.a.bytes()};
}

Cost CostOf(const DecayGateBackwardArgs& args) {
  return {.flops = 9.0 * args.a.size(), .bytes = (args.accumulate_da ? 5.0 : 4.0) * args.a.bytes()};
}

Var DecayGate(Tape& tape, Var a, Param& A_log, Param& dt_bias) {
  CHECK_EQ(a.shape().back() % A_log.value.size(), 0) << A_log.spec.name;
  CHECK_EQ(a.shape().back(), dt_bias.value.size()) << dt_bias.spec.name;
  Stream& stream = tape.stream();
  Tensor g = Tensor::Empty(a.shape(), a.value.dtype(), tape.device());
  DecayGateForward(stream, {.a = a.value, .A_log = A_log.value, .dt_bias = dt_bias.value, .g = g});
  return tape.Record({a}, g,
                     {.name = "decay_gate",
                      .params = {&A_log, &dt_bias},
                      .input_grad = [&stream, &A_log, &dt_bias, a = a.value, g](
                                        std::span<const Tensor> dg, std::span<GradSlot> dx) {
                        const bool accumulate = dx[0].accumulate();
                        DecayGateBackward(stream, {.dg = dg[0],
                                                   .a = a,
                                                   .A_log = A_log.value,
                                                   .dt_bias = dt_bias.value,
                                                   .g = g,
                                                   .da = dx[0].to(),
                                                   .dA_log = A_log.main_grad,
                                                   .ddt_bias = dt_bias.main_grad,
                                                   .accumulate_da = accumulate});
                      }});
}

}  // namespace lt2
