#include "model/mixers/retnet/retnet.h"

#include <cmath>

#include "core/config_range.h"
#include "kernels/gated_rms_norm.h"
#include "kernels/linear.h"
#include "model/init.h"

namespace lt2 {

RetNet::Options RetNet::ReadOptions(const ModelConfig& config, const ConfigTable& table) {
  Options options{
      .width = config.width,
      .head = ReadHeadWidths(table, config.width, config.heads, 1, 2),
      .rope = {.theta = config.rope_theta,
               .style = config.rope_interleaved ? RopeStyle::kInterleaved : RopeStyle::kHalf},
      .norm_eps = 1e-5};
  ReadPositive(table, "norm_eps", &options.norm_eps);
  if (options.head.k % 2 != 0) {
    table.AddError("expand_k", StrCat("heads of ", options.head.k,
                                      " channels cannot be rotated: the width must be even"));
  }
  return options;
}

RetNet::RetNet(const Options& options, const MixerSite& site)
    : options_(options),
      q_proj_(site.scope.Add("q_proj.weight", {options.head.heads * options.head.k, options.width},
                             ProjectionInit(options.width))),
      k_proj_(site.scope.Add("k_proj.weight", {options.head.heads * options.head.k, options.width},
                             ProjectionInit(options.width))),
      v_proj_(site.scope.Add("v_proj.weight", {options.head.heads * options.head.v, options.width},
                             ProjectionInit(options.width))),
      g_proj_(site.scope.Add("g_proj.weight", {options.head.heads * options.head.v, options.width},
                             ProjectionInit(options.width))),
      o_proj_(site.scope.Add("o_proj.weight", {options.width, options.head.heads * options.head.v},
                             ProjectionInit(options.width))),
      o_norm_(site.scope.Add("o_norm.weight", {options.head.v}, {.kind = Init::Kind::kOnes},
                             /*decay=*/false)) {
  for (int64_t h = 0; h < options.head.heads; ++h) {
    log_gamma_.push_back(std::log1p(-std::exp2(static_cast<double>(-5 - h))));
  }
}

Var RetNet::Mix(Tape& tape, const Var& x_ND, const RecurrentRun& run) {
  const int64_t tokens = x_ND.value.dim(0), heads = options_.head.heads;
  const auto projected = [&](Param& proj, int64_t width) {
    return Reshape(Linear(tape, x_ND, proj), {tokens, heads, width});
  };
  const auto rotated = [&](Param& proj) {
    return Rope(tape, projected(proj, options_.head.k), run.positions(), options_.rope);
  };
  const Var o =
      run.Scan(tape,
               ScanScalarInputs{.q_NHK = rotated(q_proj_),
                                .k_NHK = rotated(k_proj_),
                                .v_NGV = projected(v_proj_, options_.head.v),
                                .g_NG = {},
                                .log_gamma_G = Tensor::FromHost(
                                    log_gamma_, {heads}, x_ND.value.dtype(), x_ND.value.device())},
               1 / std::sqrt(static_cast<double>(options_.head.k)), /*entry=*/0);
  const Var normed =
      GatedRmsNorm(tape, Reshape(o, {tokens, heads * options_.head.v}), Linear(tape, x_ND, g_proj_),
                   o_norm_, options_.norm_eps, GateKind::kSwish);
  return Linear(tape, normed, o_proj_);
}

std::vector<StateEntry> RetNet::StateSpec(int64_t sequences, int64_t /*capacity*/,
                                          DType dtype) const {
  return {{"state", {sequences, options_.head.heads, options_.head.k, options_.head.v}, dtype}};
}

double RetNet::FlopsPerToken(int64_t /*sequence*/) const {
  const double width = static_cast<double>(options_.width);
  const double k = static_cast<double>(options_.head.k);
  const double keys = k * static_cast<double>(options_.head.heads);
  const double values = static_cast<double>(options_.head.heads * options_.head.v);
  return 2 * width * (2 * keys + 3 * values) + 4 * k * values;
}

ForeignTable RetNet::ForeignNames() {
  return {.params = {{"q_proj.weight", "q_proj.weight"},
                     {"k_proj.weight", "k_proj.weight"},
                     {"v_proj.weight", "v_proj.weight"},
                     {"g_proj.weight", "g_proj.weight"},
                     {"o_proj.weight", "o_proj.weight"},
                     {"o_norm.weight", "g_norm_swish_gate.weight"}},
          .options = {{"heads", "num_heads"},
                      {"expand_k", "expand_k"},
                      {"expand_v", "expand_v"},
                      {"norm_eps", "norm_eps"}}};
}

}  // namespace lt2
