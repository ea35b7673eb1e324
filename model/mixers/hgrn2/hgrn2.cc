#include "model/mixers/hgrn2/hgrn2.h"

#include <cmath>

#include "core/config_range.h"
#include "core/strings.h"
#include "kernels/activation.h"
#include "kernels/hgrn_gate.h"
#include "kernels/linear.h"
#include "kernels/rms_norm.h"
#include "model/init.h"

namespace lt2 {

Hgrn2::Options Hgrn2::ReadOptions(const ModelConfig& config, const ConfigTable& table) {
  Options o{.width = config.width, .heads = 0, .learn_bounds = false, .norm_eps = 1e-5};
  int64_t expand_ratio = config.heads > 0 ? config.width / config.heads : 0;
  table.Read("expand_ratio", &expand_ratio);
  table.Read("learn_bounds", &o.learn_bounds);
  ReadPositive(table, "norm_eps", &o.norm_eps);
  if (expand_ratio <= 0 || o.width % expand_ratio != 0) {
    table.AddError("expand_ratio", StrCat(expand_ratio, " does not divide width ", o.width));
  } else {
    o.heads = o.width / expand_ratio;
  }
  return o;
}

Hgrn2::Hgrn2(const Options& options, const MixerSite& site)
    : options_(options),
      layer_(site.layer),
      layers_(site.layers),
      q_proj_(site.scope.Add("q_proj.weight", {options.width, options.width},
                             ProjectionInit(options.width))),
      f_proj_(site.scope.Add("f_proj.weight", {options.width, options.width},
                             ProjectionInit(options.width))),
      i_proj_(site.scope.Add("i_proj.weight", {options.width, options.width},
                             ProjectionInit(options.width))),
      o_proj_(site.scope.Add("o_proj.weight", {options.width, options.width},
                             ProjectionInit(options.width))),
      o_norm_(site.scope.Add("o_norm.weight", {options.width}, {.kind = Init::Kind::kOnes},
                             /*decay=*/false)) {
  if (options.learn_bounds) {
    bounds_ = &site.root.AddShared("hgrn2.lower_bounds", {site.layers, options.width},
                                   {.kind = Init::Kind::kZeros}, /*decay=*/false);
  }
}

Var Hgrn2::Bound(Tape& tape, DType dtype) const {
  if (bounds_ != nullptr) return LowerBound(tape, *bounds_, layer_);
  const double bound = static_cast<double>(layer_) / static_cast<double>(layers_);
  const std::vector<double> bounds(options_.width, bound);
  return tape.Input(Tensor::FromHost(bounds, {options_.width}, dtype, tape.device()));
}

Var Hgrn2::Mix(Tape& tape, const Var& x_ND, const RecurrentRun& run) {
  const int64_t tokens = x_ND.value.dim(0), head_dim = options_.width / options_.heads;
  const auto by_heads = [&](const Var& x) {
    return Reshape(x, {tokens, options_.heads, head_dim});
  };
  const HgrnGates gates =
      HgrnGate(tape, Linear(tape, x_ND, f_proj_), Bound(tape, x_ND.value.dtype()));
  const Var o =
      run.Scan(tape,
               ScanChannelInputs{.q_NHK = by_heads(Silu(tape, Linear(tape, x_ND, q_proj_))),
                                 .k_NHK = by_heads(gates.k_ND),
                                 .v_NGV = by_heads(Linear(tape, x_ND, i_proj_)),
                                 .g_NGK = by_heads(gates.g_ND)},
               1 / std::sqrt(static_cast<double>(head_dim)), /*entry=*/0);
  return Linear(tape,
                RmsNorm(tape, Reshape(o, {tokens, options_.width}), o_norm_, options_.norm_eps),
                o_proj_);
}

std::vector<StateEntry> Hgrn2::StateSpec(int64_t sequences, int64_t /*capacity*/,
                                         DType dtype) const {
  const int64_t head_dim = options_.width / options_.heads;
  return {{"state", {sequences, options_.heads, head_dim, head_dim}, dtype}};
}

double Hgrn2::FlopsPerToken(int64_t /*sequence*/) const {
  const double width = static_cast<double>(options_.width);
  return 8 * width * width + 4 * width * width / static_cast<double>(options_.heads);
}

ForeignTable Hgrn2::ForeignNames() {
  return {.params = {{"q_proj.weight", "q_proj.weight"},
                     {"f_proj.weight", "f_proj.weight"},
                     {"i_proj.weight", "i_proj.weight"},
                     {"o_proj.weight", "o_proj.weight"},
                     {"o_norm.weight", "g_norm.weight"}},
          .options = {{"expand_ratio", "expand_ratio", 128}}};
}

}  // namespace lt2
