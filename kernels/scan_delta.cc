#include "kernels/scan_delta.h"

namespace lt2 {
namespace {

struct Sizes {
  int64_t tokens, key_heads, heads, k, v;
};

Sizes SizesOf(const Tensor& q, const Tensor& v) {
  return {
      .tokens = q.dim(0), .key_heads = q.dim(1), .heads = v.dim(1), .k = q.dim(2), .v = v.dim(2)};
}

// Bytes of q, k, v, g, beta and o, each once.
double StreamBytes(const Sizes& n, const Tensor& channel_decay, DType dtype) {
  const int64_t decays = channel_decay.defined() ? n.k : 1;
  return static_cast<double>(n.tokens * SizeOf(dtype)) *
         (2 * n.key_heads * n.k + 2 * n.heads * n.v + (1 + decays) * n.heads);
}

void CheckShapes(const ScanDeltaInputs& in, const Documents& documents) {
  const Tensor &q = in.q_NHK.value, &v = in.v_NGV.value;
  const Sizes n = SizesOf(q, v);
  CHECK_EQ(n.tokens, documents.tokens());
  CHECK_EQ(n.heads % n.key_heads, 0) << n.heads << " value heads over " << n.key_heads;
  CHECK_EQ(in.k_NHK.shape(), q.shape());
  CHECK_EQ(v.shape(), (Shape{n.tokens, n.heads, n.v}));
  CHECK_EQ(in.beta_NG.shape(), (Shape{n.tokens, n.heads}));
  CHECK(!in.g_NG.value.defined() || !in.g_NGK.value.defined()) << "one decay or the other";
  if (in.g_NG.value.defined()) CHECK_EQ(in.g_NG.shape(), in.beta_NG.shape());
  if (in.g_NGK.value.defined()) CHECK_EQ(in.g_NGK.shape(), (Shape{n.tokens, n.heads, n.k}));
  if (in.initial_state_DGKV.value.defined()) {
    CHECK_EQ(in.initial_state_DGKV.shape(), (Shape{documents.capacity(), n.heads, n.k, n.v}));
  }
}

}  // namespace

// The chunked algorithm's exact count; the backward recomputes nothing sequential.
Cost CostOf(const ScanDeltaForwardArgs& a) {
  const Sizes n = SizesOf(a.q_NHK, a.v_NGV);
  constexpr double c = kChunk;
  const double per_token = 6 * c * n.k + 4 * c * n.v + 6.0 * n.k * n.v + c * c / 3;
  return {.flops = static_cast<double>(n.tokens * n.heads) * per_token,
          .bytes = StreamBytes(n, a.g_NGK, a.q_NHK.dtype())};
}

Cost CostOf(const ScanDeltaBackwardArgs& a) {
  const Sizes n = SizesOf(a.q_NHK, a.v_NGV);
  constexpr double c = kChunk;
  const double per_token = 14 * c * n.k + 10 * c * n.v + 16.0 * n.k * n.v + 4 * c * c;
  const double saved = static_cast<double>(a.states_CGKV.bytes() + a.u_NGV.bytes());
  return {.flops = static_cast<double>(n.tokens * n.heads) * per_token,
          .bytes = 2 * StreamBytes(n, a.g_NGK, a.q_NHK.dtype()) + saved};
}

Cost CostOf(const ScanDeltaStepArgs& a) {
  const Sizes n = SizesOf(a.q_BHK, a.v_BGV);
  return {.flops = 7.0 * static_cast<double>(a.state_BGKV.size()),
          .bytes = StreamBytes(n, a.g_BGK, a.q_BHK.dtype()) +
                   2.0 * static_cast<double>(a.state_BGKV.bytes())};
}

ScanOutputs ScanDelta(Tape& tape, const ScanDeltaInputs& in, double scale,
                      const Documents& documents, bool want_final_state) {
  CheckShapes(in, documents);
  const Tensor &q = in.q_NHK.value, &v = in.v_NGV.value;
  const Sizes n = SizesOf(q, v);
  const auto empty = [&](const Shape& shape) {
    return Tensor::Empty(shape, v.dtype(), tape.device());
  };
  const auto state = [&](bool wanted, int64_t count) {
    return wanted ? empty({count, n.heads, n.k, n.v}) : Tensor();
  };

  const std::vector<Tensor> kept = tape.Kept([&]() -> std::vector<Tensor> {
    ScanDeltaForwardArgs args{.q_NHK = q,
                              .k_NHK = in.k_NHK.value,
                              .v_NGV = v,
                              .g_NG = in.g_NG.value,
                              .g_NGK = in.g_NGK.value,
                              .beta_NG = in.beta_NG.value,
                              .initial_DGKV = in.initial_state_DGKV.value,
                              .documents = documents,
                              .scale = scale,
                              .o_NGV = empty(v.shape()),
                              .final_DGKV = state(want_final_state, documents.capacity()),
                              .states_CGKV = state(tape.saves(), documents.chunk_capacity()),
                              .u_NGV = tape.saves() ? empty(v.shape()) : Tensor()};
    ScanDeltaForward(tape.stream(), args);
    return {args.o_NGV, args.final_DGKV, args.states_CGKV, args.u_NGV};
  });
  std::vector<Tensor> out = {kept[0]};
  if (want_final_state) out.push_back(kept[1]);

  Node node{.name = "scan_delta"};
  node.input_grad = [&stream = tape.stream(), in, scale, documents, states = kept[2], u = kept[3]](
                        std::span<const Tensor> dy, std::span<GradSlot> dx) {
    ScanDeltaBackward(stream, {.q_NHK = in.q_NHK.value,
                               .k_NHK = in.k_NHK.value,
                               .v_NGV = in.v_NGV.value,
                               .g_NG = in.g_NG.value,
                               .g_NGK = in.g_NGK.value,
                               .beta_NG = in.beta_NG.value,
                               .initial_DGKV = in.initial_state_DGKV.value,
                               .documents = documents,
                               .scale = scale,
                               .states_CGKV = states,
                               .u_NGV = u,
                               .do_NGV = dy[0],
                               .dfinal_DGKV = dy.size() > 1 ? dy[1] : Tensor(),
                               .dstates_CGKV = Tensor::Empty(states.shape(), u.dtype(), u.device()),
                               .e_NGV = Tensor::Empty(u.shape(), u.dtype(), u.device()),
                               .dq_NHK = GradInto(dx[0]),
                               .dk_NHK = GradInto(dx[1]),
                               .dv_NGV = GradInto(dx[2]),
                               .dg_NG = GradInto(dx[3]),
                               .dg_NGK = GradInto(dx[4]),
                               .dbeta_NG = GradInto(dx[5]),
                               .dinitial_DGKV = GradInto(dx[6])});
  };
  const std::vector<Var> inputs = {
      in.q_NHK, in.k_NHK, in.v_NGV, in.g_NG, in.g_NGK, in.beta_NG, in.initial_state_DGKV};
  const std::vector<Var> vars = tape.Record(inputs, std::move(out), std::move(node));
  return {.o_NGV = vars[0], .final_state_DGKV = want_final_state ? vars[1] : Var()};
}

}  // namespace lt2
