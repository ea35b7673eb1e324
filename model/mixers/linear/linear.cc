#include "model/mixers/linear/linear.h"

#include <cmath>

#include "core/config_range.h"
#include "kernels/activation.h"
#include "kernels/add_bias.h"
#include "kernels/gated_product.h"
#include "kernels/linear.h"
#include "kernels/rms_norm.h"
#include "model/init.h"

namespace lt2 {

LinearAttention::Options LinearAttention::ReadOptions(const ModelConfig& config,
                                                      const ConfigTable& table) {
  Options options{.width = config.width,
                  .head = ReadHeadWidths(table, config.width, config.heads, 1, 1),
                  .feature_map = FeatureMap::kHadamard,
                  .norm = true,
                  .norm_eps = 1e-5};
  options.feature_map = static_cast<FeatureMap>(table.ReadChoice(
      "feature_map", {"identity", "elu", "hadamard"}, static_cast<int>(options.feature_map)));
  table.Read("norm", &options.norm);
  ReadPositive(table, "norm_eps", &options.norm_eps);
  return options;
}

LinearAttention::LinearAttention(const Options& options, const MixerSite& site)
    : options_(options),
      q_proj_(site.scope.Add("q_proj.weight", {options.head.heads * options.head.k, options.width},
                             ProjectionInit(options.width))),
      k_proj_(site.scope.Add("k_proj.weight", {options.head.heads * options.head.k, options.width},
                             ProjectionInit(options.width))),
      v_proj_(site.scope.Add("v_proj.weight", {options.head.heads * options.head.v, options.width},
                             ProjectionInit(options.width))),
      o_proj_(site.scope.Add("o_proj.weight", {options.width, options.head.heads * options.head.v},
                             ProjectionInit(options.width))) {
  if (options.norm) {
    o_norm_ = &site.scope.Add("o_norm.weight", {options.head.v}, {.kind = Init::Kind::kOnes},
                              /*decay=*/false);
  }
  if (options.feature_map == FeatureMap::kHadamard) {
    q_map_ = AddHadamard(site.scope.Sub("feature_map_q"));
    k_map_ = AddHadamard(site.scope.Sub("feature_map_k"));
  }
}

LinearAttention::Hadamard LinearAttention::AddHadamard(const ParamScope& scope) const {
  const int64_t k = options_.head.k;
  const auto weight = [&](const char* name) { return &scope.Add(name, {k, k}, ProjectionInit(k)); };
  const auto bias = [&](const char* name) {
    return &scope.Add(name, {k}, {.kind = Init::Kind::kZeros}, /*decay=*/false);
  };
  return {.w1 = weight("layer1.weight"),
          .c1 = bias("layer1.bias"),
          .w2 = weight("layer2.weight"),
          .c2 = bias("layer2.bias")};
}

Var LinearAttention::Features(Tape& tape, const Var& x_NHK, const Hadamard& map) const {
  switch (options_.feature_map) {
    case FeatureMap::kIdentity:
      return x_NHK;
    case FeatureMap::kElu:
      return EluPlusOne(tape, x_NHK);
    case FeatureMap::kHadamard:
      break;
  }
  return Product(tape, AddBias(tape, Linear(tape, x_NHK, *map.w1), *map.c1),
                 AddBias(tape, Linear(tape, x_NHK, *map.w2), *map.c2));
}

Var LinearAttention::Mix(Tape& tape, const Var& x_ND, const RecurrentRun& run) {
  const int64_t tokens = x_ND.value.dim(0), heads = options_.head.heads;
  const auto projected = [&](Param& proj, int64_t width) {
    return Reshape(Linear(tape, x_ND, proj), {tokens, heads, width});
  };
  Var o = run.Scan(
      tape,
      ScanScalarInputs{.q_NHK = Features(tape, projected(q_proj_, options_.head.k), q_map_),
                       .k_NHK = Features(tape, projected(k_proj_, options_.head.k), k_map_),
                       .v_NGV = projected(v_proj_, options_.head.v),
                       .g_NG = {}},
      1 / std::sqrt(static_cast<double>(options_.head.k)), /*entry=*/0);
  if (o_norm_ != nullptr) o = RmsNorm(tape, o, *o_norm_, options_.norm_eps);
  return Linear(tape, Reshape(o, {tokens, heads * options_.head.v}), o_proj_);
}

std::vector<StateEntry> LinearAttention::StateSpec(int64_t sequences, int64_t /*capacity*/,
                                                   DType dtype) const {
  return {{"state", {sequences, options_.head.heads, options_.head.k, options_.head.v}, dtype}};
}

double LinearAttention::FlopsPerToken(int64_t /*sequence*/) const {
  const double width = static_cast<double>(options_.width);
  const double k = static_cast<double>(options_.head.k);
  const double keys = k * static_cast<double>(options_.head.heads);
  const double values = static_cast<double>(options_.head.heads * options_.head.v);
  const double maps = options_.feature_map == FeatureMap::kHadamard ? 8 * keys * k : 0;
  return 4 * width * (keys + values) + maps + 4 * k * values;
}

ForeignTable LinearAttention::ForeignNames() {
  ForeignTable table{.params = {{"o_norm.weight", "norm.weight"}},
                     .options = {{"heads", "num_heads"},
                                 {"expand_k", "expand_k"},
                                 {"expand_v", "expand_v"},
                                 {"feature_map", "feature_map"},
                                 {"norm_eps", "norm_eps"}}};
  for (const char* name :
       {"q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight",
        "feature_map_q.layer1.weight", "feature_map_q.layer1.bias", "feature_map_q.layer2.weight",
        "feature_map_q.layer2.bias", "feature_map_k.layer1.weight", "feature_map_k.layer1.bias",
        "feature_map_k.layer2.weight", "feature_map_k.layer2.bias"}) {
    table.params.push_back({name, name});
  }
  return table;
}

}  // namespace lt2
