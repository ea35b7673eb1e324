#include "model/mixers/gdn/gdn.h"

#include <cmath>

#include "core/config_range.h"
#include "core/strings.h"
#include "kernels/beta_gate.h"
#include "kernels/decay_gate.h"
#include "kernels/gated_product.h"
#include "kernels/gated_rms_norm.h"
#include "kernels/l2_norm.h"
#include "kernels/linear.h"
#include "kernels/rms_norm.h"
#include "kernels/scan_delta.h"
#include "kernels/short_conv.h"
#include "model/init.h"

namespace lt2 {
namespace {

constexpr int64_t kConvWidth = 4;
constexpr double kL2Eps = 1e-6;
constexpr int64_t kMostHeads = 4096;  // and the width of one

}  // namespace

GatedDeltaNet::Options GatedDeltaNet::ReadOptions(const ModelConfig& config,
                                                  const ConfigTable& table) {
  Options o{.width = config.width,
            .heads = config.heads,
            .conv = true,
            .gate = true,
            .negative_eigenvalues = false,
            .norm_eps = 1e-5};
  double expand_v = 2;
  ReadInRange(table, "heads", 1, kMostHeads, &o.heads);
  if (table.Wrong("heads")) o.heads = config.heads;
  o.v_heads = o.heads;
  o.head_dim = config.width * 3 / 4 / o.heads;
  ReadInRange(table, "v_heads", 1, kMostHeads, &o.v_heads);
  ReadInRange(table, "head_dim", 1, kMostHeads, &o.head_dim);
  ReadPositive(table, "expand_v", &expand_v);
  table.Read("conv", &o.conv);
  table.Read("gate", &o.gate);
  table.Read("allow_neg_eigval", &o.negative_eigenvalues);
  ReadPositive(table, "norm_eps", &o.norm_eps);
  if (!table.Wrong("heads") && o.v_heads % o.heads != 0) {
    table.AddError("v_heads", StrCat(o.v_heads, " is not a multiple of heads ", o.heads));
  }
  const double v_dim = expand_v * static_cast<double>(o.head_dim);
  if (table.Wrong("head_dim") || table.Wrong("expand_v")) return o;
  if (v_dim != std::floor(v_dim) || v_dim < 1 || v_dim > kMostHeads) {
    table.AddError("expand_v", StrCat(expand_v, " × head_dim ", o.head_dim,
                                      " must be an integer from 1 to ", kMostHeads));
    return o;
  }
  o.v_dim = std::llround(v_dim);
  return o;
}

GatedDeltaNet::GatedDeltaNet(const Options& options, const MixerSite& site)
    : options_(options),
      scale_(1 / std::sqrt(static_cast<double>(options.head_dim))),
      q_proj_(site.scope.Add("q_proj.weight", {key_width(), options.width},
                             ProjectionInit(options.width))),
      k_proj_(site.scope.Add("k_proj.weight", {key_width(), options.width},
                             ProjectionInit(options.width))),
      v_proj_(site.scope.Add("v_proj.weight", {value_width(), options.width},
                             ProjectionInit(options.width))),
      a_proj_(site.scope.Add("a_proj.weight", {options.v_heads, options.width},
                             ProjectionInit(options.width))),
      b_proj_(site.scope.Add("b_proj.weight", {options.v_heads, options.width},
                             ProjectionInit(options.width))),
      o_proj_(site.scope.Add("o_proj.weight", {options.width, value_width()},
                             ProjectionInit(options.width))),
      A_log_(site.scope.Add("A_log", {options.v_heads},
                            {.kind = Init::Kind::kLogUniform, .a = 0.01, .b = 16},
                            /*decay=*/false)),
      dt_bias_(site.scope.Add("dt_bias", {options.v_heads},
                              {.kind = Init::Kind::kInverseSoftplusLogUniform, .a = 1e-3, .b = 0.1},
                              /*decay=*/false)),
      o_norm_(site.scope.Add("o_norm.weight", {options.v_dim}, {.kind = Init::Kind::kOnes},
                             /*decay=*/false)) {
  if (options.gate) {
    g_proj_ = &site.scope.Add("g_proj.weight", {value_width(), options.width},
                              ProjectionInit(options.width));
  }
  if (options.conv) {
    const Init half = {.kind = Init::Kind::kUniform, .a = -0.5, .b = 0.5};
    q_conv_ = &site.scope.Add("q_conv1d.weight", {key_width(), kConvWidth}, half);
    k_conv_ = &site.scope.Add("k_conv1d.weight", {key_width(), kConvWidth}, half);
    v_conv_ = &site.scope.Add("v_conv1d.weight", {value_width(), kConvWidth}, half);
  }
}

Var GatedDeltaNet::Beta(Tape& tape, const Var& x_ND) {
  return BetaGate(tape, Linear(tape, x_ND, b_proj_), options_.negative_eigenvalues ? 2 : 1);
}

Var GatedDeltaNet::Decay(Tape& tape, const Var& x_ND) {
  return DecayGate(tape, Linear(tape, x_ND, a_proj_), A_log_, dt_bias_);
}

Var GatedDeltaNet::Output(Tape& tape, const Var& o_NGV, const Var& x_ND) {
  const int64_t tokens = o_NGV.value.dim(0);
  Var o;
  if (g_proj_ != nullptr) {
    o = GatedRmsNorm(tape, Reshape(o_NGV, {tokens, value_width()}), Linear(tape, x_ND, *g_proj_),
                     o_norm_, options_.norm_eps, GateKind::kSwish);
  } else {
    o = Reshape(RmsNorm(tape, o_NGV, o_norm_, options_.norm_eps), {tokens, value_width()});
  }
  return Linear(tape, o, o_proj_);
}

MixerOutput GatedDeltaNet::Forward(Tape& tape, const Var& x_ND, const MixerContext& context) {
  const Documents& documents = context.documents;
  const int64_t tokens = documents.tokens();
  MixerState* state = context.state;
  // state: recurrent S, then (with convolutions) the tails of q, k and v.
  const auto convolved = [&](Param& proj, Param* conv, int tail) {
    const Var x = Linear(tape, x_ND, proj);
    if (conv == nullptr) return SigmoidGate(tape, x, x);  // silu(x) = x σ(x)
    if (state != nullptr) {
      ShortConvTail(tape.stream(),
                    {.x_NC = x.value, .documents = documents, .tail_out_DPC = (*state)[tail]});
    }
    return ShortConv(tape, x, *conv, nullptr, /*silu=*/true, documents);
  };
  const Var q = L2Norm(tape, convolved(q_proj_, q_conv_, 1), options_.head_dim, kL2Eps);
  const Var k = L2Norm(tape, convolved(k_proj_, k_conv_, 2), options_.head_dim, kL2Eps);
  const Var v = convolved(v_proj_, v_conv_, 3);
  const ScanOutputs scan =
      ScanDelta(tape,
                {.q_NHK = Reshape(q, {tokens, options_.heads, options_.head_dim}),
                 .k_NHK = Reshape(k, {tokens, options_.heads, options_.head_dim}),
                 .v_NGV = Reshape(v, {tokens, options_.v_heads, options_.v_dim}),
                 .g_NG = Decay(tape, x_ND),
                 .beta_NG = Beta(tape, x_ND)},
                scale_, documents, /*want_final_state=*/state != nullptr);
  if (state != nullptr) (*state)[0].CopyFrom(scan.final_state_DGKV.value);
  return {.y_ND = Output(tape, scan.o_NGV, x_ND)};
}

Tensor GatedDeltaNet::Step(Stream& stream, const Tensor& x_BD, MixerState& state,
                           const StepContext&) {
  Tape tape(stream);
  tape.set_recording(false);
  const int64_t batch = x_BD.dim(0);
  const Var x = tape.Input(x_BD);
  const auto convolved = [&](Param& proj, Param* conv, int tail) {
    const Var projected = Linear(tape, x, proj);
    if (conv == nullptr) return SigmoidGate(tape, projected, projected);
    Tensor y = Tensor::Empty(projected.shape(), x_BD.dtype(), x_BD.device());
    ShortConvStep(
        stream, {.x_BC = projected.value, .w_CW = conv->value, .tail_BPC = state[tail], .y_BC = y});
    return tape.Input(y);
  };
  const Var q = L2Norm(tape, convolved(q_proj_, q_conv_, 1), options_.head_dim, kL2Eps);
  const Var k = L2Norm(tape, convolved(k_proj_, k_conv_, 2), options_.head_dim, kL2Eps);
  const Var v = convolved(v_proj_, v_conv_, 3);
  Tensor o = Tensor::Empty({batch, options_.v_heads, options_.v_dim}, x_BD.dtype(), x_BD.device());
  ScanDeltaStep(stream, {.q_BHK = q.value.Reshape({batch, options_.heads, options_.head_dim}),
                         .k_BHK = k.value.Reshape({batch, options_.heads, options_.head_dim}),
                         .v_BGV = v.value.Reshape({batch, options_.v_heads, options_.v_dim}),
                         .g_BG = Decay(tape, x).value,
                         .beta_BG = Beta(tape, x).value,
                         .state_BGKV = state[0],
                         .scale = scale_,
                         .o_BGV = o});
  return Output(tape, tape.Input(o), x).value;
}

std::vector<StateEntry> GatedDeltaNet::StateSpec(int64_t sequences, int64_t /*capacity*/,
                                                 DType dtype) const {
  std::vector<StateEntry> spec = {
      {"state", {sequences, options_.v_heads, options_.head_dim, options_.v_dim}, dtype}};
  if (options_.conv) {
    spec.push_back({"q_tail", {sequences, kConvWidth - 1, key_width()}, dtype});
    spec.push_back({"k_tail", {sequences, kConvWidth - 1, key_width()}, dtype});
    spec.push_back({"v_tail", {sequences, kConvWidth - 1, value_width()}, dtype});
  }
  return spec;
}

double GatedDeltaNet::FlopsPerToken(int64_t /*sequence*/) const {
  const double width = static_cast<double>(options_.width);
  const double keys = static_cast<double>(key_width());
  const double values = static_cast<double>(value_width());
  const double v_heads = static_cast<double>(options_.v_heads);
  const double projections =
      2 * width * (2 * keys + (options_.gate ? 3 : 2) * values + 2 * v_heads);
  const double conv = options_.conv ? 2 * kConvWidth * (2 * keys + values) : 0;
  // Read k, write, read q: 2 K V each (mixers' recurrent form).
  return projections + conv + 6 * static_cast<double>(options_.head_dim) * values;
}

ForeignTable GatedDeltaNet::ForeignNames() {
  ForeignTable table{.options = {{"heads", "num_heads"},
                                 {"v_heads", "num_v_heads"},
                                 {"head_dim", "head_dim"},
                                 {"expand_v", "expand_v"},
                                 {"conv", "use_short_conv"},
                                 {"gate", "use_gate"},
                                 {"allow_neg_eigval", "allow_neg_eigval"},
                                 {"norm_eps", "norm_eps"}}};
  for (const char* name :
       {"q_proj.weight", "k_proj.weight", "v_proj.weight", "a_proj.weight", "b_proj.weight",
        "g_proj.weight", "o_proj.weight", "A_log", "dt_bias", "q_conv1d.weight", "k_conv1d.weight",
        "v_conv1d.weight", "o_norm.weight"}) {
    table.params.push_back({name, name});
  }
  return table;
}

}  // namespace lt2
