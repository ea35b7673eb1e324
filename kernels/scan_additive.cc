#include "kernels/scan_additive.h"

#include "kernels/scan_sizes.h"

namespace lt2 {
namespace {

void CheckShapes(const ScanAdditiveInputs& in, const Documents& documents) {
  const ScanDims n(in.q_NHK.value, in.v_NGV.value);
  CheckScan(in.q_NHK.value, in.k_NHK.value, in.v_NGV.value, in.initial_state_DGKV.value, n.v,
            documents);
  const Tensor &g = in.g_NG.value, &g_channels = in.g_NGK.value;
  CHECK_LE(g.defined() + g_channels.defined() + in.log_gamma_G.defined(), 1) << "decays";
  if (g.defined()) CHECK_EQ(g.shape(), (Shape{n.tokens, n.heads}));
  if (g_channels.defined()) CHECK_EQ(g_channels.shape(), (Shape{n.tokens, n.heads, n.k}));
  if (in.log_gamma_G.defined()) CHECK_EQ(in.log_gamma_G.size(), n.heads);
}

// Bytes of the inputs but the state and of o, each once.
double StreamBytes(const Tensor& q, const Tensor& v, const Tensor& channel_decay) {
  return ScanDims(q, v).StreamBytes(q.dtype(), channel_decay.defined() ? q.dim(2) : 1);
}

}  // namespace

// The chunked algorithm's count, lower triangles at half.
Cost CostOf(const ScanAdditiveForwardArgs& a) {
  const ScanDims n(a.q_NHK, a.v_NGV);
  constexpr double c = kChunk;
  const double k = static_cast<double>(n.k), v = static_cast<double>(n.v);
  return {.flops = n.rows() * (c * (k + v) + 4 * k * v),
          .bytes = StreamBytes(a.q_NHK, a.v_NGV, a.g_NGK)};
}

Cost CostOf(const ScanAdditiveBackwardArgs& a) {
  const ScanDims n(a.q_NHK, a.v_NGV);
  constexpr double c = kChunk;
  const double k = static_cast<double>(n.k), v = static_cast<double>(n.v);
  return {.flops = n.rows() * (c * (3 * k + 2 * v) + 8 * k * v),
          .bytes = 2 * StreamBytes(a.q_NHK, a.v_NGV, a.g_NGK) +
                   static_cast<double>(a.states_CGKV.bytes())};
}

Cost CostOf(const ScanAdditiveStepArgs& a) {
  return {.flops = 5.0 * static_cast<double>(a.state_BGKV.size()),
          .bytes = StreamBytes(a.q_BHK, a.v_BGV, a.g_BGK) +
                   2.0 * static_cast<double>(a.state_BGKV.bytes())};
}

ScanOutputs ScanAdditive(Tape& tape, const ScanAdditiveInputs& in, double scale,
                         const Documents& documents, bool want_final_state) {
  CheckShapes(in, documents);
  const Tensor& v = in.v_NGV.value;
  const ScanDims n(in.q_NHK.value, v);
  const auto state = [&](bool wanted, int64_t count, DType dtype) {
    const Shape shape = {count, n.heads, n.k, n.v};
    return wanted ? Tensor::Empty(shape, dtype, tape.device()) : Tensor();
  };

  const std::vector<Tensor> kept = tape.Kept([&]() -> std::vector<Tensor> {
    ScanAdditiveForwardArgs args{
        .q_NHK = in.q_NHK.value,
        .k_NHK = in.k_NHK.value,
        .v_NGV = v,
        .g_NG = in.g_NG.value,
        .g_NGK = in.g_NGK.value,
        .log_gamma_G = in.log_gamma_G,
        .initial_DGKV = in.initial_state_DGKV.value,
        .documents = documents,
        .scale = scale,
        .o_NGV = Tensor::Empty(v.shape(), v.dtype(), tape.device()),
        .final_DGKV = state(want_final_state, documents.capacity(), AccumulatorOf(v.dtype())),
        .states_CGKV = state(tape.saves(), documents.chunk_capacity(), v.dtype())};
    ScanAdditiveForward(tape.stream(), args);
    return {args.o_NGV, args.final_DGKV, args.states_CGKV};
  });
  std::vector<Tensor> out = {kept[0]};
  if (want_final_state) out.push_back(kept[1]);

  Node node{.name = "scan_additive"};
  node.input_grad = [&stream = tape.stream(), q = tape.Save(in.q_NHK), k = tape.Save(in.k_NHK),
                     v = tape.Save(in.v_NGV), g = tape.Save(in.g_NG),
                     g_channels = tape.Save(in.g_NGK), log_gamma = in.log_gamma_G,
                     initial = tape.Save(in.initial_state_DGKV), scale, documents,
                     states = kept[2]](std::span<const Tensor> dy, std::span<GradSlot> dx) {
    ScanAdditiveBackward(
        stream, {.q_NHK = q.get(),
                 .k_NHK = k.get(),
                 .v_NGV = v.get(),
                 .g_NG = g.get(),
                 .g_NGK = g_channels.get(),
                 .log_gamma_G = log_gamma,
                 .initial_DGKV = initial.get(),
                 .documents = documents,
                 .scale = scale,
                 .states_CGKV = states,
                 .do_NGV = dy[0],
                 .dfinal_DGKV = dy.size() > 1 ? dy[1] : Tensor(),
                 .dstates_CGKV = Tensor::Empty(states.shape(), states.dtype(), states.device()),
                 .dq_NHK = GradInto(dx[0]),
                 .dk_NHK = GradInto(dx[1]),
                 .dv_NGV = GradInto(dx[2]),
                 .dg_NG = GradInto(dx[3]),
                 .dg_NGK = GradInto(dx[4]),
                 .dinitial_DGKV = GradInto(dx[5])});
  };
  const std::vector<Var> inputs = {in.q_NHK, in.k_NHK, in.v_NGV,
                                   in.g_NG,  in.g_NGK, in.initial_state_DGKV};
  const std::vector<Var> vars = tape.Record(inputs, std::move(out), std::move(node));
  return {.o_NGV = vars[0], .final_state_DGKV = want_final_state ? vars[1] : Var()};
}

}  // namespace lt2
