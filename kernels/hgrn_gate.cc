#include "kernels/hgrn_gate.h"

namespace lt2 {

Cost CostOf(const HgrnGateForwardArgs& args) {
  return {.flops = 10.0 * args.f_ND.size(), .bytes = 3.0 * args.f_ND.bytes()};
}

Cost CostOf(const HgrnGateBackwardArgs& args) {
  return {.flops = 12.0 * args.f_ND.size(),
          .bytes = (args.accumulate_df ? 5.0 : 4.0) * args.f_ND.bytes()};
}

Cost CostOf(const LowerBoundForwardArgs& args) {
  return {.flops = 4.0 * args.table_LD.size(), .bytes = 1.0 * args.table_LD.bytes()};
}

Cost CostOf(const LowerBoundBackwardArgs& args) {
  return {.flops = 6.0 * args.table_LD.size(), .bytes = 3.0 * args.table_LD.bytes()};
}

HgrnGates HgrnGate(Tape& tape, Var f_ND, Var bound_D) {
  CHECK_EQ(f_ND.shape().back(), bound_D.shape().size());
  Stream& stream = tape.stream();
  std::vector<Var> out = tape.MakeAll([&stream, f = tape.Save(f_ND), bound = tape.Save(bound_D)] {
    const Tensor from = f.get();
    const Tensor g = Tensor::Empty(from.shape(), AccumulatorOf(from.dtype()), from.device());
    const Tensor k = Tensor::Empty(from.shape(), from.dtype(), from.device());
    HgrnGateForward(stream, {.f_ND = from, .bound_D = bound.get(), .g_ND = g, .k_ND = k});
    return std::vector<Tensor>{g, k};
  });
  Node node{.name = "hgrn_gate"};
  node.input_grad = [&stream, f = tape.Save(f_ND), bound = tape.Save(bound_D)](
                        std::span<const Tensor> dy, std::span<GradSlot> dx) {
    const bool accumulate_df = dx[0].accumulate(), accumulate_dbound = dx[1].accumulate();
    HgrnGateBackward(stream, {.dg_ND = dy[0],
                              .dk_ND = dy[1],
                              .f_ND = f.get(),
                              .bound_D = bound.get(),
                              .df_ND = dx[0].to(),
                              .dbound_D = dx[1].to(),
                              .accumulate_df = accumulate_df,
                              .accumulate_dbound = accumulate_dbound});
  };
  const std::vector<Var> vars =
      tape.Record(std::vector<Var>{f_ND, bound_D}, std::move(out), std::move(node));
  return {.g_ND = vars[0], .k_ND = vars[1]};
}

Var LowerBound(Tape& tape, Param& table_LD, int64_t layer) {
  CHECK(0 <= layer && layer < table_LD.value.dim(0)) << table_LD.spec.name << " " << layer;
  Stream& stream = tape.stream();
  Tensor bound = Tensor::Empty({table_LD.value.dim(1)}, table_LD.value.dtype(), tape.device());
  LowerBoundForward(stream, {.table_LD = table_LD.value, .layer = layer, .bound_D = bound});
  return tape.Record({}, bound,
                     {.name = "lower_bound",
                      .params = {&table_LD},
                      .input_grad = [&stream, &table_LD, layer, bound](std::span<const Tensor> dy,
                                                                       std::span<GradSlot>) {
                        LowerBoundBackward(stream, {.dbound_D = dy[0],
                                                    .table_LD = table_LD.value,
                                                    .bound_D = bound,
                                                    .layer = layer,
                                                    .dtable_LD = table_LD.main_grad});
                      }});
}

}  // namespace lt2
