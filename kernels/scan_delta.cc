#include "kernels/scan_delta.h"

#include <optional>

#include "kernels/scan_sizes.h"

namespace lt2 {
namespace {

// Bytes of the inputs but the state and of o, each once.
double StreamBytes(const Tensor& q, const Tensor& v, const Tensor& channel_decay) {
  const int64_t decays = channel_decay.defined() ? q.dim(2) : 1;
  return ScanDims(q, v).StreamBytes(q.dtype(), /*gates=*/1 + decays);
}

void CheckShapes(const ScanDeltaInputs& in, const Documents& documents) {
  const ScanDims n(in.q_NHK.value, in.v_NGV.value);
  CheckScan(in.q_NHK.value, in.k_NHK.value, in.v_NGV.value, in.initial_state_DGKV.value, n.v,
            documents);
  CHECK_EQ(in.beta_NG.shape(), (Shape{n.tokens, n.heads}));
  CHECK(!in.g_NG.value.defined() || !in.g_NGK.value.defined()) << "one decay or the other";
  if (in.g_NG.value.defined()) CHECK_EQ(in.g_NG.shape(), in.beta_NG.shape());
  if (in.g_NGK.value.defined()) CHECK_EQ(in.g_NGK.shape(), (Shape{n.tokens, n.heads, n.k}));
}

}  // namespace

// The chunked algorithm's count, lower triangles at half; inverses of diagonal blocks are left out.
Cost CostOf(const ScanDeltaForwardArgs& a) {
  const ScanDims n(a.q_NHK, a.v_NGV);
  constexpr double c = kChunk;
  const double k = static_cast<double>(n.k), v = static_cast<double>(n.v);
  return {.flops = n.rows() * (2 * c * (k + v) + 6 * k * v),
          .bytes = StreamBytes(a.q_NHK, a.v_NGV, a.g_NGK)};
}

Cost CostOf(const ScanDeltaBackwardArgs& a) {
  const ScanDims n(a.q_NHK, a.v_NGV);
  constexpr double c = kChunk;
  const double k = static_cast<double>(n.k), v = static_cast<double>(n.v);
  const double saved = static_cast<double>(a.states_CGKV.bytes() + a.u_NGV.bytes());
  return {.flops = n.rows() * (c * (6 * k + 4 * v) + 12 * k * v),
          .bytes = 2 * StreamBytes(a.q_NHK, a.v_NGV, a.g_NGK) + saved};
}

Cost CostOf(const ScanDeltaStepArgs& a) {
  return {.flops = 7.0 * static_cast<double>(a.state_BGKV.size()),
          .bytes = StreamBytes(a.q_BHK, a.v_BGV, a.g_BGK) +
                   2.0 * static_cast<double>(a.state_BGKV.bytes())};
}

namespace {

// E and M of the last document's tokens: a pass from nothing, and one without values from the unit
// matrix.
StateLink::Segment SegmentOf(Stream& stream, StateLink& link, ScanDeltaForwardArgs args) {
  const Tensor v = args.v_NGV;
  const int64_t heads = v.dim(1), k = args.q_NHK.dim(2);
  const DType dtype = AccumulatorOf(v.dtype());
  args.o_NGV = args.states_CGKV = args.u_NGV = {};
  args.final_DGKV = Tensor::Empty({1, heads, k, v.dim(2)}, dtype, stream.device);
  ScanDeltaForward(stream, args);
  const StateLink::Segment segment = {
      .state_1GKV = args.final_DGKV,
      .map_1GKX = Tensor::Empty({1, heads, k, k}, dtype, stream.device)};
  args.v_NGV = Tensor::Zeros({v.dim(0), heads, k}, v.dtype(), stream.device);
  args.initial_DGKV = link.Unit(heads, k, dtype, stream.device);
  args.final_DGKV = segment.map_1GKX;
  ScanDeltaForward(stream, args);
  return segment;
}

// Of the inputs where `dx` has their slots. The working memory is let go.
void Backward(Stream& stream, ScanDeltaBackwardArgs args, const Tensor& dfinal,
              const GradInto& dinitial, std::span<GradSlot> dx) {
  args.dfinal_DGKV = dfinal;
  args.dinitial_DGKV = dinitial;
  if (!dx.empty()) {
    args.dq_NHK = GradInto(dx[0]);
    args.dk_NHK = GradInto(dx[1]);
    args.dv_NGV = GradInto(dx[2]);
    args.dg_NG = GradInto(dx[3]);
    args.dg_NGK = GradInto(dx[4]);
    args.dbeta_NG = GradInto(dx[5]);
  }
  const Tensor &states = args.states_CGKV, &u = args.u_NGV;
  args.dstates_CGKV = Tensor::Empty(states.shape(), u.dtype(), u.device());
  args.e_NGV = Tensor::Empty(u.shape(), u.dtype(), u.device());
  ScanDeltaBackward(stream, args);
}

}  // namespace

ScanOutputs ScanDelta(Tape& tape, const ScanDeltaInputs& in, double scale,
                      const Documents& documents, FinalStates final_states, StateLink* link,
                      const Meanwhile& meanwhile) {
  CheckShapes(in, documents);
  const bool wants_final = final_states != FinalStates::kNone;
  CHECK(link == nullptr || !(wants_final || in.initial_state_DGKV.value.defined()));
  const Tensor &q = in.q_NHK.value, &v = in.v_NGV.value;
  const ScanDims n(q, v);
  const auto empty = [&](const Shape& shape) {
    return Tensor::Empty(shape, v.dtype(), tape.device());
  };
  const auto state = [&](bool wanted, int64_t count, DType dtype) {
    const Shape shape = {count, n.heads, n.k, n.v};
    return wanted ? Tensor::Empty(shape, dtype, tape.device()) : Tensor();
  };

  ScanDeltaForwardArgs args{
      .q_NHK = q,
      .k_NHK = in.k_NHK.value,
      .v_NGV = v,
      .g_NG = in.g_NG.value,
      .g_NGK = in.g_NGK.value,
      .beta_NG = in.beta_NG.value,
      .initial_DGKV = in.initial_state_DGKV.value,
      .documents = documents,
      .scale = scale,
      .o_NGV = empty(v.shape()),
      .final_DGKV =
          state(wants_final, FinalRows(final_states, documents), AccumulatorOf(v.dtype())),
      .states_CGKV = state(tape.recording(), documents.chunk_capacity(), v.dtype()),
      .u_NGV = tape.recording() ? empty(v.shape()) : Tensor()};
  const std::vector<Var> inputs = {
      in.q_NHK, in.k_NHK, in.v_NGV, in.g_NG, in.g_NGK, in.beta_NG, in.initial_state_DGKV};
  std::optional<LinkedScan> linked;
  if (link != nullptr) {
    const auto segment = [&] { return SegmentOf(tape.stream(), *link, args); };
    linked.emplace(tape, *link, "scan_delta", inputs, segment, meanwhile);
    args.initial_DGKV = linked->incoming().state_1GKV;
  }
  ScanDeltaForward(tape.stream(), args);
  std::vector<Tensor> out = {args.o_NGV};
  if (wants_final) out.push_back(args.final_DGKV);

  Node node{.name = "scan_delta"};
  node.input_grad = [&stream = tape.stream(), q = tape.Save(in.q_NHK), k = tape.Save(in.k_NHK),
                     v = tape.Save(in.v_NGV), g = tape.Save(in.g_NG),
                     g_channels = tape.Save(in.g_NGK), beta = tape.Save(in.beta_NG),
                     initial = tape.Save(in.initial_state_DGKV), scale, documents,
                     states = args.states_CGKV, u = args.u_NGV,
                     linked](std::span<const Tensor> dy, std::span<GradSlot> dx) {
    ScanDeltaBackwardArgs args{
        .q_NHK = q.get(),
        .k_NHK = k.get(),
        .v_NGV = v.get(),
        .g_NG = g.get(),
        .g_NGK = g_channels.get(),
        .beta_NG = beta.get(),
        .initial_DGKV = linked ? linked->incoming().state_1GKV : initial.get(),
        .documents = documents,
        .scale = scale,
        .states_CGKV = states,
        .u_NGV = u,
        .do_NGV = dy[0]};
    const auto gradients = [&stream, args](const Tensor& dfinal, const GradInto& dinitial,
                                           std::span<GradSlot> dx) {
      Backward(stream, args, dfinal, dinitial, dx);
    };
    if (linked) return linked->Backward(stream, dx[0], {}, gradients);
    gradients(dy.size() > 1 ? dy[1] : Tensor(), GradInto(dx[6]), dx);
  };
  const std::vector<Var> vars = linked ? linked->Record(tape, std::move(out), std::move(node))
                                       : tape.Record(inputs, std::move(out), std::move(node));
  if (!linked) meanwhile();
  return {.o_NGV = vars[0], .final_state_DGKV = wants_final ? vars[1] : Var()};
}

}  // namespace lt2
