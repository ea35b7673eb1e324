#include "kernels/scan_additive.h"

#include <optional>

#include "kernels/elementwise.h"
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

namespace {

// E and M of the last document's tokens: a pass from nothing, and one over a state of one column
// without values from ones.
StateLink::Segment SegmentOf(Stream& stream, ScanAdditiveForwardArgs args) {
  const Tensor v = args.v_NGV;
  const int64_t heads = v.dim(1), k = args.q_NHK.dim(2);
  const auto state = [&](int64_t width) {
    return Tensor::Empty({1, heads, k, width}, AccumulatorOf(v.dtype()), stream.device);
  };
  const StateLink::Segment segment = {.state_1GKV = state(v.dim(2)), .map_1GKX = state(1)};
  args.o_NGV = args.states_CGKV = {};
  args.final_DGKV = segment.state_1GKV;
  ScanAdditiveForward(stream, args);
  args.v_NGV = Tensor::Zeros({v.dim(0), heads, 1}, v.dtype(), stream.device);
  args.initial_DGKV = state(1);
  Fill(stream, args.initial_DGKV, 1);
  args.final_DGKV = segment.map_1GKX;
  ScanAdditiveForward(stream, args);
  return segment;
}

// Of the inputs where `dx` has their slots. The working memory is let go.
void Backward(Stream& stream, ScanAdditiveBackwardArgs args, const Tensor& dfinal,
              const GradInto& dinitial, std::span<GradSlot> dx) {
  args.dfinal_DGKV = dfinal;
  args.dinitial_DGKV = dinitial;
  if (!dx.empty()) {
    args.dq_NHK = GradInto(dx[0]);
    args.dk_NHK = GradInto(dx[1]);
    args.dv_NGV = GradInto(dx[2]);
    args.dg_NG = GradInto(dx[3]);
    args.dg_NGK = GradInto(dx[4]);
  }
  const Tensor& states = args.states_CGKV;
  args.dstates_CGKV = Tensor::Empty(states.shape(), states.dtype(), states.device());
  ScanAdditiveBackward(stream, args);
}

}  // namespace

ScanOutputs ScanAdditive(Tape& tape, const ScanAdditiveInputs& in, double scale,
                         const Documents& documents, FinalStates final_states, StateLink* link,
                         const Meanwhile& meanwhile) {
  CheckShapes(in, documents);
  const bool wants_final = final_states != FinalStates::kNone;
  CHECK(link == nullptr || !(wants_final || in.initial_state_DGKV.value.defined()));
  const Tensor& v = in.v_NGV.value;
  const ScanDims n(in.q_NHK.value, v);
  const auto state = [&](bool wanted, int64_t count, DType dtype) {
    const Shape shape = {count, n.heads, n.k, n.v};
    return wanted ? Tensor::Empty(shape, dtype, tape.device()) : Tensor();
  };

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
      .final_DGKV =
          state(wants_final, FinalRows(final_states, documents), AccumulatorOf(v.dtype())),
      .states_CGKV = state(tape.recording(), documents.chunk_capacity(), v.dtype())};
  const std::vector<Var> inputs = {in.q_NHK, in.k_NHK, in.v_NGV,
                                   in.g_NG,  in.g_NGK, in.initial_state_DGKV};
  std::optional<LinkedScan> linked;
  if (link != nullptr) {
    const auto segment = [&] { return SegmentOf(tape.stream(), args); };
    linked.emplace(tape, *link, "scan_additive", inputs, segment, meanwhile);
    args.initial_DGKV = linked->incoming().state_1GKV;
  }
  ScanAdditiveForward(tape.stream(), args);
  std::vector<Tensor> out = {args.o_NGV};
  if (wants_final) out.push_back(args.final_DGKV);

  Node node{.name = "scan_additive"};
  node.input_grad =
      [&stream = tape.stream(), q = tape.Save(in.q_NHK), k = tape.Save(in.k_NHK),
       v = tape.Save(in.v_NGV), g = tape.Save(in.g_NG), g_channels = tape.Save(in.g_NGK),
       log_gamma = in.log_gamma_G, initial = tape.Save(in.initial_state_DGKV), scale, documents,
       states = args.states_CGKV, linked](std::span<const Tensor> dy, std::span<GradSlot> dx) {
        ScanAdditiveBackwardArgs args{
            .q_NHK = q.get(),
            .k_NHK = k.get(),
            .v_NGV = v.get(),
            .g_NG = g.get(),
            .g_NGK = g_channels.get(),
            .log_gamma_G = log_gamma,
            .initial_DGKV = linked ? linked->incoming().state_1GKV : initial.get(),
            .documents = documents,
            .scale = scale,
            .states_CGKV = states,
            .do_NGV = dy[0]};
        const auto gradients = [&stream, args](const Tensor& dfinal, const GradInto& dinitial,
                                               std::span<GradSlot> dx) {
          Backward(stream, args, dfinal, dinitial, dx);
        };
        if (linked) return linked->Backward(stream, dx[0], {}, gradients);
        gradients(dy.size() > 1 ? dy[1] : Tensor(), GradInto(dx[5]), dx);
      };
  const std::vector<Var> vars = linked ? linked->Record(tape, std::move(out), std::move(node))
                                       : tape.Record(inputs, std::move(out), std::move(node));
  if (!linked) meanwhile();
  return {.o_NGV = vars[0], .final_state_DGKV = wants_final ? vars[1] : Var()};
}

}  // namespace lt2
