#include "model/mixers/common/delta_mixer.h"

#include <cmath>

#include "core/config_range.h"
#include "core/strings.h"
#include "kernels/beta_gate.h"
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

// What StateSpec lists, in its order; the tails only with convolutions.
enum State : size_t { kScanState, kQueryTail, kKeyTail, kValueTail };

}  // namespace

DeltaMixer::Options DeltaMixer::ReadCommon(const ModelConfig& config, const ConfigTable& table) {
  Options o{.width = config.width,
            .heads = config.heads,
            .v_heads = 0,
            .head_dim = 0,
            .v_dim = 0,
            .conv = true,
            .gate = false,
            .negative_eigenvalues = false,
            .norm_eps = 1e-5};
  ReadInRange(table, "heads", 1, kMostHeads, &o.heads);
  if (table.Wrong("heads")) o.heads = config.heads;
  o.v_heads = o.heads;
  table.Read("conv", &o.conv);
  table.Read("allow_neg_eigval", &o.negative_eigenvalues);
  ReadPositive(table, "norm_eps", &o.norm_eps);
  return o;
}

void DeltaMixer::ReadHeadShape(const ConfigTable& table, int64_t head_dim, double expand_v,
                               Options* o) {
  o->head_dim = head_dim;
  ReadInRange(table, "v_heads", 1, kMostHeads, &o->v_heads);
  ReadInRange(table, "head_dim", 1, kMostHeads, &o->head_dim);
  if (!table.Wrong("heads") && o->v_heads % o->heads != 0) {
    table.AddError("v_heads", StrCat(o->v_heads, " is not a multiple of heads ", o->heads));
  }
  if (table.Wrong("head_dim")) return table.Accept("expand_v");
  o->v_dim = ReadExpanded(table, "expand_v", expand_v, static_cast<double>(o->head_dim));
}

int64_t DeltaMixer::ReadExpanded(const ConfigTable& table, std::string_view key, double factor,
                                 double base) {
  ReadPositive(table, key, &factor);
  if (table.Wrong(key)) return 0;
  const double size = factor * base;
  if (std::abs(size - std::round(size)) > 1e-9 * size || size < 0.5 || size > kMostHeads) {
    table.AddError(key, StrCat(factor, " × ", base,
                               " channels of a head must be an integer from 1 to ", kMostHeads));
    return 0;
  }
  return std::llround(size);
}

DeltaMixer::Convolved::Convolved(const MixerSite& site, const std::string& name, int64_t channels,
                                 const Options& options)
    : proj(site.scope.Add(name + "_proj.weight", {channels, options.width},
                          ProjectionInit(options.width))) {
  if (!options.conv) return;
  conv = &site.scope.Add(name + "_conv1d.weight", {channels, kConvWidth},
                         {.kind = Init::Kind::kUniform, .a = -0.5, .b = 0.5});
}

Var DeltaMixer::Convolved::Forward(Tape& tape, const Var& x_ND, const Documents& documents,
                                   Tensor* tail) const {
  const Var x = Linear(tape, x_ND, proj);
  if (conv == nullptr) return SigmoidGate(tape, x, x);  // silu(x) = x σ(x)
  if (tail != nullptr) {
    ShortConvTail(tape.stream(), {.x_NC = x.value, .documents = documents, .tail_out_DPC = *tail});
  }
  return ShortConv(tape, x, *conv, nullptr, /*silu=*/true, documents);
}

Var DeltaMixer::Convolved::Step(Tape& tape, const Var& x_BD, const Tensor* tail) const {
  const Var x = Linear(tape, x_BD, proj);
  if (conv == nullptr) return SigmoidGate(tape, x, x);
  Tensor y = Tensor::Empty(x.shape(), x.value.dtype(), tape.device());
  ShortConvStep(tape.stream(),
                {.x_BC = x.value, .w_CW = conv->value, .tail_BPC = *tail, .y_BC = y});
  return tape.Input(y);
}

DeltaMixer::DeltaMixer(const Options& options, const MixerSite& site)
    : options_(options),
      o_norm_(site.scope.Add("o_norm.weight", {options.v_dim}, {.kind = Init::Kind::kOnes},
                             /*decay=*/false)),
      scale_(1 / std::sqrt(static_cast<double>(options.head_dim))),
      q_(site, "q", key_width(), options),
      k_(site, "k", key_width(), options),
      v_(site, "v", value_width(), options),
      b_proj_(site.scope.Add("b_proj.weight", {options.v_heads, options.width},
                             ProjectionInit(options.width))),
      o_proj_(site.scope.Add("o_proj.weight", {options.width, value_width()},
                             ProjectionInit(options.width))) {}

Var DeltaMixer::Beta(Tape& tape, const Var& x_ND) {
  return BetaGate(tape, Linear(tape, x_ND, b_proj_), options_.negative_eigenvalues ? 2 : 1);
}

Var DeltaMixer::SwishGatedNorm(Tape& tape, const Var& o_NGV, const Var& x_ND, Param* g_proj) {
  const Shape flat = {o_NGV.value.dim(0), value_width()};
  if (g_proj == nullptr) return Reshape(RmsNorm(tape, o_NGV, o_norm_, options_.norm_eps), flat);
  return GatedRmsNorm(tape, Reshape(o_NGV, flat), Linear(tape, x_ND, *g_proj), o_norm_,
                      options_.norm_eps, GateKind::kSwish);
}

MixerOutput DeltaMixer::Forward(Tape& tape, const Var& x_ND, const MixerContext& context) {
  const Documents& documents = context.documents;
  const int64_t tokens = documents.tokens(), heads = options_.heads, dim = options_.head_dim;
  MixerState* state = context.state;
  const auto convolved = [&](const Convolved& x, State tail) {
    const bool keep = state != nullptr && options_.conv;
    return x.Forward(tape, x_ND, documents, keep ? &(*state)[tail] : nullptr);
  };
  const Var q = L2Norm(tape, convolved(q_, kQueryTail), dim, kL2Eps);
  const Var k = L2Norm(tape, convolved(k_, kKeyTail), dim, kL2Eps);
  const Var v = convolved(v_, kValueTail);
  const LogDecay decay = Decay(tape, x_ND);
  const ScanOutputs scan =
      ScanDelta(tape,
                {.q_NHK = Reshape(q, {tokens, heads, dim}),
                 .k_NHK = Reshape(k, {tokens, heads, dim}),
                 .v_NGV = Reshape(v, {tokens, options_.v_heads, options_.v_dim}),
                 .g_NG = decay.g_NG,
                 .g_NGK = decay.g_NGK,
                 .beta_NG = Beta(tape, x_ND),
                 .initial_state_DGKV = {}},
                scale_, documents, /*want_final_state=*/state != nullptr);
  if (state != nullptr) (*state)[kScanState].CopyFrom(scan.final_state_DGKV.value);
  return {.y_ND = Linear(tape, GatedOutput(tape, scan.o_NGV, x_ND), o_proj_)};
}

Tensor DeltaMixer::Step(Stream& stream, const Tensor& x_BD, MixerState& state, const StepContext&) {
  Tape tape(stream);
  tape.set_recording(false);
  const int64_t batch = x_BD.dim(0), heads = options_.heads, dim = options_.head_dim;
  const Var x = tape.Input(x_BD);
  const auto convolved = [&](const Convolved& projection, State tail) {
    return projection.Step(tape, x, options_.conv ? &state[tail] : nullptr);
  };
  const Var q = L2Norm(tape, convolved(q_, kQueryTail), dim, kL2Eps);
  const Var k = L2Norm(tape, convolved(k_, kKeyTail), dim, kL2Eps);
  const Var v = convolved(v_, kValueTail);
  const LogDecay decay = Decay(tape, x);
  Tensor o = Tensor::Empty({batch, options_.v_heads, options_.v_dim}, x_BD.dtype(), x_BD.device());
  ScanDeltaStep(stream, {.q_BHK = q.value.Reshape({batch, heads, dim}),
                         .k_BHK = k.value.Reshape({batch, heads, dim}),
                         .v_BGV = v.value.Reshape({batch, options_.v_heads, options_.v_dim}),
                         .g_BG = decay.g_NG.value,
                         .g_BGK = decay.g_NGK.value,
                         .beta_BG = Beta(tape, x).value,
                         .state_BGKV = state[kScanState],
                         .scale = scale_,
                         .o_BGV = o});
  return Linear(tape, GatedOutput(tape, tape.Input(o), x), o_proj_).value;
}

std::vector<StateEntry> DeltaMixer::StateSpec(int64_t sequences, int64_t /*capacity*/,
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

double DeltaMixer::FlopsPerToken(int64_t /*sequence*/) const {
  const double width = static_cast<double>(options_.width);
  const double keys = static_cast<double>(key_width());
  const double values = static_cast<double>(value_width());
  const double projections =
      2 * width * (2 * keys + 2 * values + static_cast<double>(options_.v_heads));
  const double conv = options_.conv ? 2 * kConvWidth * (2 * keys + values) : 0;
  // Read k, write, read q: 2 K V each.
  return projections + GateFlops() + conv + 6 * static_cast<double>(options_.head_dim) * values;
}

ForeignTable DeltaMixer::CommonForeignNames() {
  ForeignTable table{.options = {{"heads", "num_heads"},
                                 {"expand_v", "expand_v"},
                                 {"conv", "use_short_conv"},
                                 {"allow_neg_eigval", "allow_neg_eigval"},
                                 {"norm_eps", "norm_eps"}}};
  for (const char* name :
       {"q_proj.weight", "k_proj.weight", "v_proj.weight", "b_proj.weight", "o_proj.weight",
        "q_conv1d.weight", "k_conv1d.weight", "v_conv1d.weight", "o_norm.weight"}) {
    table.params.push_back({name, name});
  }
  return table;
}

}  // namespace lt2
