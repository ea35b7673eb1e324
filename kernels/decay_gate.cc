#include "kernels/decay_gate.h"

namespace lt2 {
namespace {

StepSizes Gate(Tape& tape, const Var& a, Param& A_log, Param& dt_bias, bool want_dt) {
  CHECK_EQ(a.shape().back() % A_log.value.size(), 0) << A_log.spec.name;
  CHECK_EQ(a.shape().back(), dt_bias.value.size()) << dt_bias.spec.name;
  Stream& stream = tape.stream();
  const auto run = [&stream, &A_log, &dt_bias, a = tape.Save(a)](const Tensor& dt) {
    const Tensor from = a.get();
    const Tensor g = Tensor::Empty(from.shape(), AccumulatorOf(from.dtype()), from.device());
    DecayGateForward(stream,
                     {.a = from, .A_log = A_log.value, .dt_bias = dt_bias.value, .dt = dt, .g = g});
    return g;
  };
  std::vector<Var> out;
  if (want_dt) {
    const Tensor dt = Tensor::Empty(a.shape(), AccumulatorOf(a.value.dtype()), tape.device());
    out = {{.value = run(dt)}, {.value = dt}};
  } else {
    out = {tape.Make([run] { return run({}); })};
  }
  Node node{.name = "decay_gate", .params = {&A_log, &dt_bias}};
  node.input_grad = [&stream, &A_log, &dt_bias, a = tape.Save(a), g = tape.Save(out[0])](
                        std::span<const Tensor> dy, std::span<GradSlot> dx) {
    const bool accumulate = dx[0].accumulate();
    DecayGateBackward(stream, {.ddt = dy.size() > 1 ? dy[1] : Tensor(),
                               .dg = dy[0],
                               .a = a.get(),
                               .A_log = A_log.value,
                               .dt_bias = dt_bias.value,
                               .g = g.get(),
                               .da = dx[0].to(),
                               .dA_log = A_log.main_grad,
                               .ddt_bias = dt_bias.main_grad,
                               .accumulate_da = accumulate});
  };
  const std::vector<Var> vars = tape.Record(std::span(&a, 1), std::move(out), std::move(node));
  return {.dt = want_dt ? vars[1] : Var(), .g = vars[0]};
}

}  // namespace

Cost CostOf(const DecayGateForwardArgs& args) {
  return {.flops = 5.0 * args.a.size(), .bytes = (args.dt.defined() ? 3.0 : 2.0) * args.a.bytes()};
}

Cost CostOf(const DecayGateBackwardArgs& args) {
  const int streams = 4 + (args.ddt.defined() ? 1 : 0) + (args.accumulate_da ? 1 : 0);
  return {.flops = 9.0 * args.a.size(), .bytes = static_cast<double>(streams * args.a.bytes())};
}

Var DecayGate(Tape& tape, Var a, Param& A_log, Param& dt_bias) {
  return Gate(tape, a, A_log, dt_bias, /*want_dt=*/false).g;
}

StepSizes TimeStep(Tape& tape, Var a, Param& A_log, Param& dt_bias) {
  return Gate(tape, a, A_log, dt_bias, /*want_dt=*/true);
}

}  // namespace lt2
