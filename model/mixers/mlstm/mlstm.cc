#include "model/mixers/mlstm/mlstm.h"

#include <cmath>

#include "core/config_range.h"
#include "kernels/gated_product.h"
#include "kernels/layer_norm.h"
#include "kernels/linear.h"
#include "kernels/narrow_linear.h"
#include "kernels/repeat_heads.h"
#include "kernels/soft_cap.h"
#include "model/init.h"
#include "model/mixers/common/by_heads.h"
#include "model/mixers/common/head_widths.h"
#include "model/mixers/common/scan_limits.h"

namespace lt2 {
namespace {

using Start = Mlstm::Start;

Init InputGateBias(Start start) {
  const double ln2 = std::log(2.0);
  const double b = start == Start::kLarge ? -10 : start == Start::kLinearize ? -ln2 : ln2;
  return {.kind = Init::Kind::kLinear, .a = b};
}

Init ForgetGateBias(Start start, int64_t heads) {
  if (start == Start::kLinearize) return {.kind = Init::Kind::kZeros};
  if (start == Start::kLinearizeAsMeant) return {.kind = Init::Kind::kLinear, .a = -std::log(2.0)};
  const double step = heads > 1 ? 3 / static_cast<double>(heads - 1) : 0;
  return {.kind = Init::Kind::kLinear, .a = 3, .b = step};
}

Init OutputInit(Start start, int64_t width, int64_t layers) {
  if (start != Start::kLarge) return ProjectionInit(width);
  return {.kind = Init::Kind::kTruncatedNormal,
          .a = 2 / (static_cast<double>(layers) * std::sqrt(static_cast<double>(width)))};
}

}  // namespace

Mlstm::Options Mlstm::ReadOptions(const ModelConfig& config, const ConfigTable& table) {
  Options o{.width = config.width,
            .heads = ReadHeads(table, config.heads),
            .kv_heads = 0,
            .head_dim = 0,
            .v_dim = 0,
            .soft_cap = 15,
            .norm_eps = 1e-6,
            .start = Start::kLarge};
  o.kv_heads = ReadKvHeads(table, o.heads);
  o.head_dim = ReadHeadWidth(table, "qk_factor", 0.5, o.width, o.heads);
  o.v_dim = ReadHeadWidth(table, "v_factor", 1, o.width, o.heads);
  ReadPositive(table, "soft_cap", &o.soft_cap);
  ReadPositive(table, "norm_eps", &o.norm_eps);
  o.start =
      static_cast<Start>(table.ReadChoice("init", {"large", "linearize", "linearize-as-meant"}, 0));
  return o;
}

std::vector<HeadCount> Mlstm::HeadCounts(const Options& options) {
  return {{"heads", options.heads}, {"kv_heads", options.kv_heads, /*shared=*/true}};
}

std::vector<SizeLimit> Mlstm::GpuLimits(const Options& options, const RunSizes&) {
  return {ScanKeyLimit("qk_factor", options.head_dim, options.heads)};
}

Mlstm::Mlstm(const Options& options, const MixerSite& site)
    : options_(options),
      q_(AddProjection(site, "q.weight", options.heads, options.head_dim)),
      k_(AddProjection(site, "k.weight", options.kv_heads, options.head_dim)),
      v_(AddProjection(site, "v.weight", options.kv_heads, options.v_dim)),
      o_gate_(AddProjection(site, "ogate_preact.weight", options.heads, options.v_dim)),
      i_(AddGate(site, "igate_preact", InputGateBias(options.start))),
      f_(AddGate(site, "fgate_preact", ForgetGateBias(options.start, options.heads))),
      norm_(site.scope.Add("multihead_norm.weight", {value_width()}, {.kind = Init::Kind::kOnes},
                           /*decay=*/false, site.Rows(options.heads))),
      out_(site.scope.Add("out_proj.weight", {options.width, value_width()},
                          OutputInit(options.start, options.width, site.layers), /*decay=*/true,
                          site.Columns(options.heads))) {}

Param& Mlstm::AddProjection(const MixerSite& site, const std::string& name, int64_t heads,
                            int64_t channels) const {
  Init init = ProjectionInit(options_.width);
  if (options_.start == Start::kLarge) {
    init.a = std::sqrt(2 / (5 * static_cast<double>(options_.width)));
  }
  return site.scope.Add(name, {heads * channels, options_.width}, init, /*decay=*/true,
                        site.Rows(heads));
}

Mlstm::Gate Mlstm::AddGate(const MixerSite& site, const std::string& name, const Init& bias) const {
  const double most = 0.1 * std::sqrt(6 / static_cast<double>(options_.width + options_.heads));
  const Init weight = options_.start == Start::kLarge
                          ? Init{.kind = Init::Kind::kZeros}
                          : Init{.kind = Init::Kind::kUniform, .a = -most, .b = most};
  return {site.scope.Add(name + ".weight", {options_.heads, options_.width}, weight, /*decay=*/true,
                         site.Rows(options_.heads)),
          site.scope.Add(name + ".bias", {options_.heads}, bias, /*decay=*/false,
                         site.Rows(options_.heads))};
}

Var Mlstm::Mix(Tape& tape, const Var& x_ND, const RecurrentRun& run) {
  const auto projected = [&](Param& proj, int64_t width) {
    return ByHeads(Linear(tape, x_ND, proj), width);
  };
  const Var q = projected(q_, options_.head_dim);
  const int64_t heads = q.value.dim(1);
  const Var k = RepeatHeads(tape, projected(k_, options_.head_dim), heads);
  const Var v = RepeatHeads(tape, projected(v_, options_.v_dim), heads);
  const std::vector<Var> gates = NarrowLinear(tape, x_ND, {&f_.weight, &i_.weight});
  Var gate;
  const Var o =
      run.Scan(tape,
               ScanMlstmInputs{.q_NHK = q,
                               .k_NHK = k,
                               .v_NHV = v,
                               .i_NH = SoftCap(tape, gates[1], i_.bias, options_.soft_cap),
                               .f_NH = SoftCap(tape, gates[0], f_.bias, options_.soft_cap),
                               .initial_state_DHKW = {}},
               1 / std::sqrt(static_cast<double>(options_.head_dim)), /*entry=*/0,
               [&] { gate = Linear(tape, x_ND, o_gate_); });
  const Var normed = LayerNorm(tape, FlatHeads(o), norm_, options_.v_dim, options_.norm_eps);
  return LinearSum(tape, SigmoidGate(tape, normed, gate), out_, run.sums());
}

std::vector<StateEntry> Mlstm::StateSpec(int64_t sequences, int64_t /*capacity*/,
                                         DType dtype) const {
  return {{"state", {sequences, options_.heads, options_.head_dim, options_.v_dim + 1}, dtype},
          {"max", {sequences, options_.heads}, dtype}};
}

double Mlstm::FlopsPerToken(int64_t /*sequence*/) const {
  int64_t weights = 0;
  for (const Param* param : {&q_, &k_, &v_, &o_gate_, &i_.weight, &f_.weight, &out_}) {
    weights += param->spec.shape.size();
  }
  // Write and read: 2 K (V + 1) each.
  const int64_t state = options_.heads * options_.head_dim * (options_.v_dim + 1);
  return static_cast<double>(2 * weights + 4 * state);
}

ForeignTable Mlstm::ForeignNames() {
  ForeignTable table{.options = {{"heads", "num_heads"},
                                 {"kv_heads", "num_key_value_heads"},
                                 {"qk_factor", "qk_dim_factor"},
                                 {"v_factor", "v_dim_factor"},
                                 {"soft_cap", "gate_soft_cap"},
                                 {"norm_eps", "norm_eps"}}};
  for (const char* name : {"q.weight", "k.weight", "v.weight", "ogate_preact.weight",
                           "igate_preact.weight", "igate_preact.bias", "fgate_preact.weight",
                           "fgate_preact.bias", "multihead_norm.weight", "out_proj.weight"}) {
    table.params.push_back({name, name});
  }
  return table;
}

}  // namespace lt2
