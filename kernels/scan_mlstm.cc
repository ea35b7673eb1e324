#include "kernels/scan_mlstm.h"

#include <optional>

#include "kernels/elementwise.h"
#include "kernels/scan_sizes.h"

namespace lt2 {
namespace {

// Bytes of the inputs but the state and of o, each once.
double StreamBytes(const Tensor& q, const Tensor& v) {
  return ScanDims(q, v).StreamBytes(q.dtype(), /*gates=*/2);
}

void CheckShapes(const ScanMlstmInputs& in, const Documents& documents) {
  const ScanDims n(in.q_NHK.value, in.v_NHV.value);
  const Shape gates = {n.tokens, n.heads};
  CheckScan(in.q_NHK.value, in.k_NHK.value, in.v_NHV.value, in.initial_state_DHKW.value, n.v + 1,
            documents);
  CHECK_EQ(n.key_heads, n.heads);
  CHECK_EQ(in.i_NH.shape(), gates);
  CHECK_EQ(in.f_NH.shape(), gates);
  if (in.initial_state_DHKW.value.defined()) {
    CHECK_EQ(in.initial_max_DH.shape(), (Shape{in.initial_state_DHKW.value.dim(0), n.heads}));
  }
}

}  // namespace

// The chunked algorithm's count, lower triangles at half, on values widened by the column of ones.
Cost CostOf(const ScanMlstmForwardArgs& a) {
  const ScanDims n(a.q_NHK, a.v_NHV);
  constexpr double c = kChunk;
  const double k = static_cast<double>(n.k), w = static_cast<double>(n.v + 1);
  return {.flops = n.rows() * (c * (k + w + 1) + 4 * k * w),
          .bytes = StreamBytes(a.q_NHK, a.v_NHV)};
}

Cost CostOf(const ScanMlstmBackwardArgs& a) {
  const ScanDims n(a.q_NHK, a.v_NHV);
  constexpr double c = kChunk;
  const double k = static_cast<double>(n.k), w = static_cast<double>(n.v + 1);
  return {.flops = n.rows() * (c * (3 * k + 2 * w + 3) + 8 * k * w),
          .bytes = 2 * StreamBytes(a.q_NHK, a.v_NHV) + static_cast<double>(a.states_CHKW.bytes())};
}

Cost CostOf(const ScanMlstmStepArgs& a) {
  return {.flops = 5.0 * static_cast<double>(a.state_BHKW.size()),
          .bytes = StreamBytes(a.q_BHK, a.v_BHV) + 2.0 * static_cast<double>(a.state_BHKW.bytes())};
}

namespace {

// E with its frame of the last document's tokens: a pass from nothing. log M, the sum of their
// log-forgets, is the frame that a pass without inputs ends in.
StateLink::Segment SegmentOf(Stream& stream, ScanMlstmForwardArgs args) {
  const int64_t tokens = args.q_NHK.dim(0), heads = args.q_NHK.dim(1);
  const DType dtype = args.v_NHV.dtype();
  const auto empty = [&](const Shape& shape) {
    return Tensor::Empty(shape, AccumulatorOf(dtype), stream.device);
  };
  const StateLink::Segment segment = {
      .state_1GKV = empty({1, heads, args.q_NHK.dim(2), args.v_NHV.dim(2) + 1}),
      .map_1GKX = {},
      .max_1G = empty({1, heads}),
      .log_map_1G = empty({1, heads})};
  args.o_NHV = args.den_NH = args.states_CHKW = args.maxes_CH = {};
  args.final_DHKW = segment.state_1GKV;
  args.final_max_DH = segment.max_1G;
  ScanMlstmForward(stream, args);
  args.q_NHK = args.k_NHK = args.v_NHV = Tensor::Zeros({tokens, heads, 1}, dtype, stream.device);
  args.i_NH = empty({tokens, heads});
  constexpr double kNothing = -1e30;
  Fill(stream, args.i_NH, kNothing);
  args.final_DHKW = empty({1, heads, 1, 2});
  args.final_max_DH = segment.log_map_1G;
  ScanMlstmForward(stream, args);
  return segment;
}

// Of the inputs where `dx` has their slots. The working memory is let go.
void Backward(Stream& stream, ScanMlstmBackwardArgs args, const Tensor& dfinal,
              const GradInto& dinitial, std::span<GradSlot> dx) {
  args.dfinal_DHKW = dfinal;
  args.dinitial_DHKW = dinitial;
  if (!dx.empty()) {
    args.dq_NHK = GradInto(dx[0]);
    args.dk_NHK = GradInto(dx[1]);
    args.dv_NHV = GradInto(dx[2]);
    args.di_NH = GradInto(dx[3]);
    args.df_NH = GradInto(dx[4]);
  }
  const Tensor& states = args.states_CHKW;
  if (!states.on_host()) {
    args.dstates_CHKW = Tensor::Empty(states.shape(), states.dtype(), states.device());
  }
  ScanMlstmBackward(stream, args);
}

}  // namespace

ScanMlstmOutputs ScanMlstm(Tape& tape, const ScanMlstmInputs& in, double scale,
                           const Documents& documents, FinalStates final_states, StateLink* link,
                           const Meanwhile& meanwhile) {
  CheckShapes(in, documents);
  CHECK(link == nullptr || !in.initial_state_DHKW.value.defined());
  CHECK(link == nullptr || final_states == FinalStates::kNone);
  const bool wants_final = final_states != FinalStates::kNone;
  const ScanDims n(in.q_NHK.value, in.v_NHV.value);
  const DType dtype = in.v_NHV.value.dtype(), accumulator = AccumulatorOf(dtype);
  const auto make = [&](bool wanted, const Shape& shape, DType of) {
    return wanted ? Tensor::Empty(shape, of, tape.device()) : Tensor();
  };
  const int64_t F = FinalRows(link != nullptr ? FinalStates::kLast : final_states, documents);
  const int64_t C = documents.chunk_capacity();
  const bool saves = tape.recording();
  const auto state = [&](int64_t count) { return Shape{count, n.heads, n.k, n.v + 1}; };
  ScanMlstmForwardArgs args{
      .q_NHK = in.q_NHK.value,
      .k_NHK = in.k_NHK.value,
      .v_NHV = in.v_NHV.value,
      .i_NH = in.i_NH.value,
      .f_NH = in.f_NH.value,
      .initial_DHKW = in.initial_state_DHKW.value,
      .initial_max_DH = in.initial_max_DH,
      .documents = documents,
      .scale = scale,
      .o_NHV = make(true, in.v_NHV.shape(), dtype),
      .final_DHKW = make(wants_final || link != nullptr, state(F), accumulator),
      .final_max_DH = make(wants_final || link != nullptr, {F, n.heads}, accumulator),
      .den_NH = make(saves, {n.tokens, n.heads}, accumulator),
      .states_CHKW = make(saves, state(C), dtype),
      .maxes_CH = make(saves, {C, n.heads}, accumulator)};
  const std::vector<Var> inputs = {in.q_NHK, in.k_NHK, in.v_NHV,
                                   in.i_NH,  in.f_NH,  in.initial_state_DHKW};
  std::optional<LinkedScan> linked;
  if (link != nullptr) {
    const auto segment = [&] { return SegmentOf(tape.stream(), args); };
    linked.emplace(tape, *link, "scan_mlstm", inputs, segment, meanwhile);
    args.initial_DHKW = linked->incoming().state_1GKV;
    args.initial_max_DH = linked->incoming().max_1G;
  }
  ScanMlstmForward(tape.stream(), args);
  std::vector<Tensor> out = {args.o_NHV};
  if (wants_final) out.push_back(args.final_DHKW);

  Node node{.name = "scan_mlstm"};
  node.input_grad = [&stream = tape.stream(), q = tape.Save(in.q_NHK), k = tape.Save(in.k_NHK),
                     v = tape.Save(in.v_NHV), i = tape.Save(in.i_NH), f = tape.Save(in.f_NH),
                     initial = tape.Save(in.initial_state_DHKW), initial_max = in.initial_max_DH,
                     scale, documents, o = args.o_NHV, final_max = args.final_max_DH,
                     den = args.den_NH, states = args.states_CHKW, maxes = args.maxes_CH,
                     linked](std::span<const Tensor> dy, std::span<GradSlot> dx) {
    ScanMlstmBackwardArgs args{
        .q_NHK = q.get(),
        .k_NHK = k.get(),
        .v_NHV = v.get(),
        .i_NH = i.get(),
        .f_NH = f.get(),
        .initial_DHKW = linked ? linked->incoming().state_1GKV : initial.get(),
        .initial_max_DH = linked ? linked->incoming().max_1G : initial_max,
        .documents = documents,
        .scale = scale,
        .o_NHV = o,
        .den_NH = den,
        .states_CHKW = states,
        .maxes_CH = maxes,
        .do_NHV = dy[0]};
    const auto gradients = [&stream, args](const Tensor& dfinal, const GradInto& dinitial,
                                           std::span<GradSlot> dx) {
      Backward(stream, args, dfinal, dinitial, dx);
    };
    if (linked) return linked->Backward(stream, dx[0], final_max, gradients);
    gradients(dy.size() > 1 ? dy[1] : Tensor(), GradInto(dx[5]), dx);
  };
  const std::vector<Var> vars = linked ? linked->Record(tape, std::move(out), std::move(node))
                                       : tape.Record(inputs, std::move(out), std::move(node));
  if (!linked) meanwhile();
  return {.o_NHV = vars[0],
          .final_state_DHKW = wants_final ? vars[1] : Var(),
          .final_max_DH = wants_final ? args.final_max_DH : Tensor()};
}

}  // namespace lt2
