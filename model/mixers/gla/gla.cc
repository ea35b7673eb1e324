#include "model/mixers/gla/gla.h"

#include <cmath>

#include "core/config_range.h"
#include "kernels/activation.h"
#include "kernels/add_bias.h"
#include "kernels/gated_rms_norm.h"
#include "kernels/linear.h"
#include "model/init.h"

namespace lt2 {

GatedLinearAttention::Options GatedLinearAttention::ReadOptions(const ModelConfig& config,
                                                                const ConfigTable& table) {
  Options options{.width = config.width,
                  .head = ReadHeadWidths(table, config.width, config.heads, 0.5, 1),
                  .gate_rank = 16,
                  .gate_divisor = 16,
                  .norm_eps = 1e-5};
  ReadInRange(table, "gate_rank", 1, 4096, &options.gate_rank);
  ReadPositive(table, "gate_divisor", &options.gate_divisor);
  ReadPositive(table, "norm_eps", &options.norm_eps);
  return options;
}

GatedLinearAttention::GatedLinearAttention(const Options& options, const MixerSite& site)
    : options_(options),
      q_proj_(
          site.scope.Add("q_proj.weight", {keys(), options.width}, ProjectionInit(options.width))),
      k_proj_(
          site.scope.Add("k_proj.weight", {keys(), options.width}, ProjectionInit(options.width))),
      v_proj_(site.scope.Add("v_proj.weight", {values(), options.width},
                             ProjectionInit(options.width))),
      g_proj_(site.scope.Add("g_proj.weight", {values(), options.width},
                             ProjectionInit(options.width))),
      o_proj_(site.scope.Add("o_proj.weight", {options.width, values()},
                             ProjectionInit(options.width))),
      gate_down_(site.scope.Add("gk_proj.0.weight", {options.gate_rank, options.width},
                                ProjectionInit(options.width))),
      gate_up_(site.scope.Add("gk_proj.1.weight", {keys(), options.gate_rank},
                              ProjectionInit(options.gate_rank))),
      gate_bias_(site.scope.Add("gk_proj.1.bias", {keys()}, {.kind = Init::Kind::kZeros},
                                /*decay=*/false)),
      o_norm_(site.scope.Add("o_norm.weight", {options.head.v}, {.kind = Init::Kind::kOnes},
                             /*decay=*/false)) {}

Var GatedLinearAttention::Mix(Tape& tape, const Var& x_ND, const RecurrentRun& run) {
  const int64_t tokens = x_ND.value.dim(0), heads = options_.head.heads;
  const auto by_heads = [&](const Var& x, int64_t width) {
    return Reshape(x, {tokens, heads, width});
  };
  const Var logits =
      AddBias(tape, Linear(tape, Linear(tape, x_ND, gate_down_), gate_up_), gate_bias_);
  const Var o = run.Scan(
      tape,
      ScanChannelInputs{
          .q_NHK = by_heads(Linear(tape, x_ND, q_proj_), options_.head.k),
          .k_NHK = by_heads(Linear(tape, x_ND, k_proj_), options_.head.k),
          .v_NGV = by_heads(Linear(tape, x_ND, v_proj_), options_.head.v),
          .g_NGK = by_heads(LogSigmoid(tape, logits, 1 / options_.gate_divisor), options_.head.k)},
      1 / std::sqrt(static_cast<double>(options_.head.k)), /*entry=*/0);
  const Var normed = GatedRmsNorm(tape, Reshape(o, {tokens, values()}), Linear(tape, x_ND, g_proj_),
                                  o_norm_, options_.norm_eps, GateKind::kSwish);
  return Linear(tape, normed, o_proj_);
}

std::vector<StateEntry> GatedLinearAttention::StateSpec(int64_t sequences, int64_t /*capacity*/,
                                                        DType dtype) const {
  return {{"state", {sequences, options_.head.heads, options_.head.k, options_.head.v}, dtype}};
}

double GatedLinearAttention::FlopsPerToken(int64_t /*sequence*/) const {
  const double width = static_cast<double>(options_.width);
  const double k = static_cast<double>(keys()), v = static_cast<double>(values());
  const double gate = 2 * static_cast<double>(options_.gate_rank) * (width + k);
  return 2 * width * (2 * k + 3 * v) + gate + 4 * static_cast<double>(options_.head.k) * v;
}

ForeignTable GatedLinearAttention::ForeignNames() {
  ForeignTable table{.params = {{"o_norm.weight", "g_norm_swish_gate.weight"}},
                     .options = {{"heads", "num_heads"},
                                 {"expand_k", "expand_k"},
                                 {"expand_v", "expand_v"},
                                 {"gate_rank", "gate_low_rank_dim"},
                                 {"gate_divisor", "gate_logit_normalizer"},
                                 {"norm_eps", "norm_eps"}}};
  for (const char* name :
       {"q_proj.weight", "k_proj.weight", "v_proj.weight", "g_proj.weight", "o_proj.weight",
        "gk_proj.0.weight", "gk_proj.1.weight", "gk_proj.1.bias"}) {
    table.params.push_back({name, name});
  }
  return table;
}

}  // namespace lt2
