#include "model/mixers/linear/linear.h"

#include "kernels/activation.h"
#include "kernels/add_bias.h"
#include "kernels/gated_product.h"
#include "kernels/linear.h"
#include "kernels/rms_norm.h"
#include "model/init.h"
#include "model/mixers/common/by_heads.h"

namespace lt2 {

LinearAttention::Options LinearAttention::ReadOptions(const ModelConfig& config,
                                                      const ConfigTable& table) {
  Options o{ReadCommon(config, table, 1, 1), FeatureMap::kHadamard, /*norm=*/true};
  o.feature_map = static_cast<FeatureMap>(table.ReadChoice(
      "feature_map", {"identity", "elu", "hadamard"}, static_cast<int>(o.feature_map)));
  table.Read("norm", &o.norm);
  return o;
}

LinearAttention::LinearAttention(const Options& options, const MixerSite& site)
    : AdditiveMixer(options, site, options.norm), feature_map_(options.feature_map) {
  if (feature_map_ == FeatureMap::kHadamard) {
    q_map_ = AddHadamard(site.scope.Sub("feature_map_q"));
    k_map_ = AddHadamard(site.scope.Sub("feature_map_k"));
  }
}

LinearAttention::Hadamard LinearAttention::AddHadamard(const ParamScope& scope) const {
  const int64_t k = options_.head.k;
  const auto weight = [&](const char* name) {
    return &scope.Add(name, {k, k}, ProjectionInit(options_.width));
  };
  const auto bias = [&](const char* name) {
    return &scope.Add(name, {k}, {.kind = Init::Kind::kZeros}, /*decay=*/false);
  };
  return {.w1 = weight("layer1.weight"),
          .c1 = bias("layer1.bias"),
          .w2 = weight("layer2.weight"),
          .c2 = bias("layer2.bias")};
}

Var LinearAttention::Features(Tape& tape, const Var& x_NHK, const Hadamard& map) const {
  switch (feature_map_) {
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
  const Heads heads = Project(tape, x_ND, run);
  Var o = run.Scan(
      tape,
      ScanAdditiveInputs{.q_NHK = Features(tape, heads.q, q_map_),
                         .k_NHK = ForEachQuery(tape, Features(tape, heads.k, k_map_), heads),
                         .v_NGV = ForEachQuery(tape, heads.v, heads),
                         .g_NG = {}},
      scale(), /*entry=*/0);
  if (o_norm_ != nullptr) o = RmsNorm(tape, o, *o_norm_, options_.norm_eps);
  return LinearSum(tape, FlatHeads(o), o_proj_, run.sums());
}

double LinearAttention::MoreFlops() const {
  if (feature_map_ != FeatureMap::kHadamard) return 0;
  const int64_t heads = options_.head.heads + options_.head.kv_heads;
  return 4 * static_cast<double>(heads * options_.head.k * options_.head.k);
}

ForeignTable LinearAttention::ForeignNames() {
  ForeignTable table = CommonForeignNames();
  table.params.push_back({"o_norm.weight", "norm.weight"});
  for (const char* name :
       {"feature_map_q.layer1.weight", "feature_map_q.layer1.bias", "feature_map_q.layer2.weight",
        "feature_map_q.layer2.bias", "feature_map_k.layer1.weight", "feature_map_k.layer1.bias",
        "feature_map_k.layer2.weight", "feature_map_k.layer2.bias"}) {
    table.params.push_back({name, name});
  }
  table.options.push_back({"feature_map", "feature_map"});
  table.words = {{"hadamard", "elementwise_product"}};
  return table;
}

}  // namespace lt2
