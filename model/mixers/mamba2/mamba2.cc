#include "model/mixers/mamba2/mamba2.h"

#include <cmath>

#include "core/config_range.h"
#include "core/strings.h"
#include "kernels/gated_product.h"
#include "kernels/linear.h"
#include "kernels/rms_norm.h"
#include "model/init.h"

namespace lt2 {
namespace {

constexpr int64_t kConvWidth = 4;
enum Entry { kState, kTailX, kTailB, kTailC };

}  // namespace

Mamba2::Options Mamba2::ReadOptions(const ModelConfig& config, const ConfigTable& table) {
  Options o{.width = config.width,
            .heads = config.heads,
            .groups = 1,
            .inner = 0,
            .state_dim = 64,
            .norm_eps = 1e-5};
  double expand = 2;
  table.Read("heads", &o.heads);
  table.Read("groups", &o.groups);
  table.Read("expand", &expand);
  table.Read("state_dim", &o.state_dim);
  ReadPositive(table, "norm_eps", &o.norm_eps);
  const double inner = expand * static_cast<double>(o.width);
  o.inner = std::llround(inner);
  if (o.heads <= 0) table.AddError("heads", "must be positive");
  if (o.heads > 0 &&
      (o.inner <= 0 || static_cast<double>(o.inner) != inner || o.inner % o.heads != 0)) {
    table.AddError("expand",
                   StrCat(expand, " × width ", o.width, " is not a multiple of heads ", o.heads));
  }
  if (o.groups <= 0 || o.heads % o.groups != 0) {
    table.AddError("groups", StrCat(o.groups, " does not divide heads ", o.heads));
  }
  if (o.state_dim <= 0) table.AddError("state_dim", "must be positive");
  return o;
}

Mamba2::Convolved::Convolved(const ParamScope& scope, const std::string& name, int64_t channels,
                             int64_t width)
    : proj(scope.Add(name + "_proj.weight", {channels, width}, ProjectionInit(width))),
      conv(scope.Add(name + "_conv1d.weight", {channels, kConvWidth},
                     {.kind = Init::Kind::kUniform, .a = -0.5, .b = 0.5})),
      bias(scope.Add(name + "_conv1d.bias", {channels}, {.kind = Init::Kind::kZeros},
                     /*decay=*/false)) {}

Mamba2::Mamba2(const Options& options, const MixerSite& site)
    : options_(options),
      z_proj_(site.scope.Add("z_proj.weight", {options.inner, options.width},
                             ProjectionInit(options.width))),
      dt_proj_(site.scope.Add("dt_proj.weight", {options.heads, options.width},
                              ProjectionInit(options.width))),
      x_(site.scope, "x", options.inner, options.width),
      B_(site.scope, "B", grouped(), options.width),
      C_(site.scope, "C", grouped(), options.width),
      A_log_(site.scope.Add("A_log", {options.heads},
                            {.kind = Init::Kind::kLogUniform, .a = 1, .b = 16},
                            /*decay=*/false)),
      D_(site.scope.Add("D", {options.heads}, {.kind = Init::Kind::kOnes}, /*decay=*/false)),
      dt_bias_(site.scope.Add("dt_bias", {options.heads},
                              {.kind = Init::Kind::kInverseSoftplusLogUniform, .a = 1e-3, .b = 0.1},
                              /*decay=*/false)),
      o_norm_(site.scope.Add("o_norm.weight", {options.inner}, {.kind = Init::Kind::kOnes},
                             /*decay=*/false)),
      o_proj_(site.scope.Add("o_proj.weight", {options.width, options.inner},
                             ProjectionInit(options.width))) {}

Var Mamba2::Mix(Tape& tape, const Var& x_ND, const RecurrentRun& run) {
  const int64_t tokens = x_ND.value.dim(0), heads = options_.heads, groups = options_.groups;
  const auto convolved = [&](const Convolved& part, int entry) {
    return run.Conv(tape, Linear(tape, x_ND, part.proj), part.conv, &part.bias, /*silu=*/true,
                    entry);
  };
  const Shape grouped = {tokens, groups, options_.state_dim};
  const Var o = run.Scan(
      tape,
      SsdInputs{.x_NHP = Reshape(convolved(x_, kTailX), {tokens, heads, options_.inner / heads}),
                .a_NH = Linear(tape, x_ND, dt_proj_),
                .B_NGK = Reshape(convolved(B_, kTailB), grouped),
                .C_NGK = Reshape(convolved(C_, kTailC), grouped)},
      SsdParams{.A_log_H = A_log_, .D_H = D_, .dt_bias_H = dt_bias_}, kState);
  const Var gated = SwiGlu(tape, Linear(tape, x_ND, z_proj_), Reshape(o, {tokens, options_.inner}));
  const Var normed = RmsNorm(tape, gated, o_norm_, options_.norm_eps, options_.inner / groups);
  return Linear(tape, normed, o_proj_);
}

std::vector<StateEntry> Mamba2::StateSpec(int64_t sequences, int64_t /*capacity*/,
                                          DType dtype) const {
  const auto tail = [&](int64_t channels) { return Shape{sequences, kConvWidth - 1, channels}; };
  return {{"state",
           {sequences, options_.heads, options_.state_dim, options_.inner / options_.heads},
           dtype},
          {"x_tail", tail(options_.inner), dtype},
          {"B_tail", tail(grouped()), dtype},
          {"C_tail", tail(grouped()), dtype}};
}

double Mamba2::FlopsPerToken(int64_t /*sequence*/) const {
  const double width = static_cast<double>(options_.width);
  const double inner = static_cast<double>(options_.inner);
  const double keys = static_cast<double>(grouped()), heads = static_cast<double>(options_.heads);
  const double projections = 2 * width * (3 * inner + 2 * keys + heads);
  const double conv = 2 * kConvWidth * (inner + 2 * keys);
  return projections + conv + 4 * static_cast<double>(options_.state_dim) * inner + 2 * inner;
}

ForeignTable Mamba2::ForeignNames() {
  return {.params = {{"z_proj.weight", "in_proj.weight"},
                     {"x_proj.weight", "in_proj.weight"},
                     {"B_proj.weight", "in_proj.weight"},
                     {"C_proj.weight", "in_proj.weight"},
                     {"dt_proj.weight", "in_proj.weight"},
                     {"x_conv1d.weight", "conv1d.weight"},
                     {"B_conv1d.weight", "conv1d.weight"},
                     {"C_conv1d.weight", "conv1d.weight"},
                     {"x_conv1d.bias", "conv1d.bias"},
                     {"B_conv1d.bias", "conv1d.bias"},
                     {"C_conv1d.bias", "conv1d.bias"},
                     {"A_log", "A_log"},
                     {"D", "D"},
                     {"dt_bias", "dt_bias"},
                     {"o_norm.weight", "norm.weight"},
                     {"o_proj.weight", "out_proj.weight"}},
          .options = {{"heads", "num_heads"},
                      {"expand", "expand"},
                      {"state_dim", "state_size", 128},
                      {"groups", "n_groups"},
                      {"norm_eps", "norm_eps"}}};
}

}  // namespace lt2
