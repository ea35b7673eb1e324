#include "model/mixers/common/delta_mixer.h"

#include <cmath>

#include "core/config_range.h"
#include "kernels/activation.h"
#include "kernels/beta_gate.h"
#include "kernels/gated_rms_norm.h"
#include "kernels/l2_norm.h"
#include "kernels/linear.h"
#include "kernels/narrow_linear.h"
#include "kernels/rms_norm.h"
#include "model/init.h"
#include "model/mixers/common/by_heads.h"
#include "model/mixers/common/head_widths.h"
#include "model/mixers/common/scan_limits.h"

namespace lt2 {
namespace {

constexpr double kL2Eps = 1e-6;

// What StateSpec lists, in its order; the tails of q, k and v only with convolutions.
enum State { kScanState, kQueryTail };

Convolved::Conv ConvOf(const DeltaMixer::Options& options) {
  return options.conv ? Convolved::Conv::kPlain : Convolved::Conv::kNone;
}

}  // namespace

DeltaMixer::Options DeltaMixer::ReadCommon(const ModelConfig& config, const ConfigTable& table) {
  Options o{.width = config.width,
            .heads = ReadHeads(table, config.heads),
            .v_heads = 0,
            .head_dim = 0,
            .v_dim = 0,
            .conv = true,
            .gate = false,
            .negative_eigenvalues = false,
            .norm_eps = 1e-5};
  o.v_heads = ReadValueHeads(table, o.heads);
  table.Read("conv", &o.conv);
  table.Read("allow_neg_eigval", &o.negative_eigenvalues);
  ReadPositive(table, "norm_eps", &o.norm_eps);
  return o;
}

void DeltaMixer::ReadHeadShape(const ConfigTable& table, int64_t head_dim, double expand_v,
                               Options* o) {
  o->head_dim = head_dim;
  ReadInRange(table, "head_dim", 1, kMostHeads, &o->head_dim);
  if (table.Wrong("head_dim")) return table.Accept("expand_v");
  o->v_dim = ReadHeadWidth(table, "expand_v", expand_v, o->head_dim, /*heads=*/1);
}

std::vector<HeadCount> DeltaMixer::HeadCounts(const Options& options) {
  return {{"v_heads", options.v_heads}, {"heads", options.heads, /*shared=*/true}};
}

std::vector<SizeLimit> DeltaMixer::GpuLimits(const Options& options, const RunSizes&) {
  return {ScanKeyLimit("head_dim", options.head_dim, options.heads, /*alone=*/true)};
}

DeltaMixer::DeltaMixer(const Options& options, const MixerSite& site)
    : options_(options),
      o_norm_(site.scope.Add("o_norm.weight", {options.v_dim}, {.kind = Init::Kind::kOnes},
                             /*decay=*/false)),
      scale_(1 / std::sqrt(static_cast<double>(options.head_dim))),
      q_(site, "q", options.heads, options.head_dim, options.width, ConvOf(options)),
      k_(site, "k", options.heads, options.head_dim, options.width, ConvOf(options)),
      v_(site, "v", options.v_heads, options.v_dim, options.width, ConvOf(options)),
      b_proj_(site.scope.Add("b_proj.weight", {options.v_heads, options.width},
                             ProjectionInit(options.width), /*decay=*/true,
                             site.Rows(options.v_heads))),
      o_proj_(site.scope.Add("o_proj.weight", {options.width, value_width()},
                             ProjectionInit(options.width), /*decay=*/true,
                             site.Columns(options.v_heads))) {}

DeltaMixer::Gates DeltaMixer::MakeGates(Tape& tape, const Var& x_ND) {
  std::vector<Param*> weights = {&b_proj_};
  if (Param* decay = DecayProjection(); decay != nullptr) weights.push_back(decay);
  const std::vector<Var> projected = NarrowLinear(tape, x_ND, weights);
  const LogDecay decay = Decay(tape, x_ND, projected.size() > 1 ? projected[1] : Var());
  return {.beta_NG = BetaGate(tape, projected[0], options_.negative_eigenvalues ? 2 : 1),
          .decay = decay};
}

Var DeltaMixer::GatedOutput(Tape& tape, const Var& o_NGV, const Var& gate_NC) {
  if (!gate_NC.value.defined()) {
    return FlatHeads(RmsNorm(tape, o_NGV, o_norm_, options_.norm_eps));
  }
  return GatedRmsNorm(tape, FlatHeads(o_NGV), gate_NC, o_norm_, options_.norm_eps,
                      GateKind::kSwish);
}

std::array<Var, kQkv> DeltaMixer::QueriesKeysValues(Tape& tape, const Var& x_ND,
                                                    const RecurrentRun& run,
                                                    const Meanwhile& meanwhile) {
  const std::array<Var, kQkv> x = {q_.Project(tape, x_ND), k_.Project(tape, x_ND),
                                   v_.Project(tape, x_ND)};
  if (options_.conv) {
    return run.Conv(tape, x, {q_.filter(), k_.filter(), v_.filter()}, options_.head_dim, kL2Eps,
                    kQueryTail, meanwhile);
  }
  const auto normed = [&](const Var& part) {
    return L2Norm(tape, Silu(tape, part), options_.head_dim, kL2Eps);
  };
  const std::array<Var, kQkv> y = {normed(x[0]), normed(x[1]), Silu(tape, x[2])};
  meanwhile();
  return y;
}

Var DeltaMixer::Mix(Tape& tape, const Var& x_ND, const RecurrentRun& run) {
  Gates gates;
  const auto [q, k, v] = QueriesKeysValues(tape, x_ND, run, [&] { gates = MakeGates(tape, x_ND); });
  Var output_gate;
  const Var o = run.Scan(tape,
                         ScanDeltaInputs{.q_NHK = ByHeads(q, options_.head_dim),
                                         .k_NHK = ByHeads(k, options_.head_dim),
                                         .v_NGV = ByHeads(v, options_.v_dim),
                                         .g_NG = gates.decay.g_NG,
                                         .g_NGK = gates.decay.g_NGK,
                                         .beta_NG = gates.beta_NG,
                                         .initial_state_DGKV = {}},
                         scale_, kScanState, [&] { output_gate = OutputGate(tape, x_ND); });
  return LinearSum(tape, GatedOutput(tape, o, output_gate), o_proj_, run.sums());
}

std::vector<StateEntry> DeltaMixer::StateSpec(int64_t sequences, int64_t /*capacity*/,
                                              DType dtype) const {
  std::vector<StateEntry> spec = {
      {"state", {sequences, options_.v_heads, options_.head_dim, options_.v_dim}, dtype}};
  for (const Convolved* part : {&q_, &k_, &v_}) part->AddState(sequences, dtype, &spec);
  return spec;
}

double DeltaMixer::FlopsPerToken(int64_t /*sequence*/) const {
  const double width = static_cast<double>(options_.width);
  const double values = static_cast<double>(value_width());
  const double more = 2 * width * (values + static_cast<double>(options_.v_heads));  // o, beta
  // Read k, write, read q: 2 K V each.
  return q_.flops() + k_.flops() + v_.flops() + more + GateFlops() +
         6 * static_cast<double>(options_.head_dim) * values;
}

ForeignTable DeltaMixer::CommonForeignNames() {
  ForeignTable table{.options = {{"heads", "num_heads"},
                                 {"v_heads", "num_v_heads"},
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
