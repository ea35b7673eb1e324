#include "kernels/scan_channel.h"

#include "kernels/additive_cost.h"

namespace lt2 {
namespace {

void CheckShapes(const ScanChannelInputs& in, const Documents& documents) {
  const Tensor &q = in.q_NHK.value, &v = in.v_NGV.value;
  const AdditiveSizes n(q, v);
  CHECK_EQ(n.tokens, documents.tokens());
  CHECK_EQ(n.heads % n.key_heads, 0) << n.heads << " value heads over " << n.key_heads;
  CHECK_EQ(in.k_NHK.shape(), q.shape());
  CHECK_EQ(v.shape(), (Shape{n.tokens, n.heads, n.v}));
  CHECK_EQ(in.g_NGK.shape(), (Shape{n.tokens, n.heads, n.k}));
  if (in.initial_state_DGKV.value.defined()) {
    CHECK_EQ(in.initial_state_DGKV.shape(), (Shape{documents.capacity(), n.heads, n.k, n.v}));
  }
}

}  // namespace

Cost CostOf(const ScanChannelForwardArgs& a) {
  return AdditiveForwardCost(a.q_NHK, a.v_NGV, /*gates=*/a.q_NHK.dim(2));
}
Cost CostOf(const ScanChannelBackwardArgs& a) {
  return AdditiveBackwardCost(a.q_NHK, a.v_NGV, /*gates=*/a.q_NHK.dim(2), a.states_CGKV);
}
Cost CostOf(const ScanChannelStepArgs& a) {
  return AdditiveStepCost(a.q_BHK, a.v_BGV, /*gates=*/a.q_BHK.dim(2), a.state_BGKV);
}

ScanOutputs ScanChannel(Tape& tape, const ScanChannelInputs& in, double scale,
                        const Documents& documents, bool want_final_state) {
  CheckShapes(in, documents);
  const Tensor& v = in.v_NGV.value;
  const AdditiveSizes n(in.q_NHK.value, v);
  const auto state = [&](bool wanted, int64_t count) {
    return wanted ? Tensor::Empty({count, n.heads, n.k, n.v}, v.dtype(), tape.device()) : Tensor();
  };

  const std::vector<Tensor> kept = tape.Kept([&]() -> std::vector<Tensor> {
    ScanChannelForwardArgs args{.q_NHK = in.q_NHK.value,
                                .k_NHK = in.k_NHK.value,
                                .v_NGV = v,
                                .g_NGK = in.g_NGK.value,
                                .initial_DGKV = in.initial_state_DGKV.value,
                                .documents = documents,
                                .scale = scale,
                                .o_NGV = Tensor::Empty(v.shape(), v.dtype(), tape.device()),
                                .final_DGKV = state(want_final_state, documents.capacity()),
                                .states_CGKV = state(tape.saves(), documents.chunk_capacity())};
    ScanChannelForward(tape.stream(), args);
    return {args.o_NGV, args.final_DGKV, args.states_CGKV};
  });
  std::vector<Tensor> out = {kept[0]};
  if (want_final_state) out.push_back(kept[1]);

  Node node{.name = "scan_channel"};
  node.input_grad = [&stream = tape.stream(), in, scale, documents, states = kept[2]](
                        std::span<const Tensor> dy, std::span<GradSlot> dx) {
    ScanChannelBackward(
        stream, {.q_NHK = in.q_NHK.value,
                 .k_NHK = in.k_NHK.value,
                 .v_NGV = in.v_NGV.value,
                 .g_NGK = in.g_NGK.value,
                 .initial_DGKV = in.initial_state_DGKV.value,
                 .documents = documents,
                 .scale = scale,
                 .states_CGKV = states,
                 .do_NGV = dy[0],
                 .dfinal_DGKV = dy.size() > 1 ? dy[1] : Tensor(),
                 .dstates_CGKV = Tensor::Empty(states.shape(), states.dtype(), states.device()),
                 .dq_NHK = GradInto(dx[0]),
                 .dk_NHK = GradInto(dx[1]),
                 .dv_NGV = GradInto(dx[2]),
                 .dg_NGK = GradInto(dx[3]),
                 .dinitial_DGKV = GradInto(dx[4])});
  };
  const std::vector<Var> inputs = {in.q_NHK, in.k_NHK, in.v_NGV, in.g_NGK, in.initial_state_DGKV};
  const std::vector<Var> vars = tape.Record(inputs, std::move(out), std::move(node));
  return {.o_NGV = vars[0], .final_state_DGKV = want_final_state ? vars[1] : Var()};
}

}  // namespace lt2
