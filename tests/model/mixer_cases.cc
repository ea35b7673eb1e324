#include "tests/model/mixer_cases.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/check.h"
#include "model/mixers/registry.h"

namespace lt2 {
namespace {

// What a kind wants set to fit into so small a model, beyond its defaults.
std::vector<std::string> NeedsOf(const std::string& kind) {
  if (kind == "window") return {"window.window=17"};  // shorter than the documents
  // Beside grouped heads of full attention, and with fewer keys than the documents have.
  if (kind == "dsa") return {"dsa.kv_heads=1", "dsa.top_k=8"};
  if (kind == "nsa") {  // groups of 16 heads; many blocks, of which most are not selected
    return {"nsa.heads=32",     "nsa.kv_heads=2",     "nsa.head_dim=4",
            "nsa.block_size=4", "nsa.block_counts=5", "nsa.window=6"};
  }
  return {};
}

// Options under which a kind computes something else; those of kinds that are not there are left
// out.
std::vector<MixerCase> Variants() {
  return {
      {"full_gate_norm", {"full"}, {"attention_gate=true", "full.qk_norm=true"}},
      {"full_one_kv_head", {"full"}, {"kv_heads=1", "rope_style='interleaved'"}},
      {"dsa_as_released", {"dsa"}, {"dsa.as_released=true"}},
      {"dsa_other_sizes",
       {"dsa"},
       {"dsa.index_heads=2", "dsa.index_dim=7", "dsa.value_dim=12", "dsa.tail_dim=0"}},
      {"gdn_grouped", {"gdn"}, {"gdn.heads=2", "gdn.v_heads=6", "gdn.head_dim=10"}},
      {"gdn_plain", {"gdn"}, {"gdn.conv=false", "gdn.gate=false", "gdn.allow_neg_eigval=true"}},
      {"nsa_one_group",
       {"nsa"},
       {"nsa.heads=16", "nsa.kv_heads=1", "nsa.head_dim=6", "nsa.block_size=7",
        "nsa.block_counts=3", "nsa.window=1", "rope_style='interleaved'"}},
      {"linear_elu_grouped",
       {"linear"},
       {"linear.feature_map='elu'", "linear.expand_k=0.5", "linear.expand_v=1.5",
        "linear.kv_heads=2"}},
      {"linear_bare_conv",
       {"linear"},
       {"linear.feature_map='identity'", "linear.norm=false", "linear.conv=true"}},
      {"retnet_grouped_conv",
       {"retnet"},
       {"retnet.kv_heads=2", "retnet.conv=true", "retnet.rope_style='interleaved'",
        "retnet.rope_theta=50"}},
      {"gla_grouped_conv",
       {"gla"},
       {"gla.heads=2", "gla.kv_heads=1", "gla.conv=true", "gla.gate_rank=3", "gla.gate_divisor=2"}},
      {"hgrn2_learned_conv",
       {"hgrn2"},
       {"hgrn2.learn_bounds=true", "hgrn2.conv=true", "hgrn2.expand_ratio=16"}},
      {"mamba2_grouped", {"mamba2"}, {"mamba2.groups=2", "mamba2.state_dim=6"}},
      {"mlstm_grouped",
       {"mlstm"},
       {"mlstm.init='linearize'", "mlstm.qk_factor=1", "mlstm.kv_heads=2"}},
      {"deltanet_grouped",
       {"deltanet"},
       {"deltanet.heads=2", "deltanet.v_heads=4", "deltanet.expand_v=0.5", "deltanet.gate=true"}},
      {"kda_grouped_full_gate",
       {"kda"},
       {"kda.heads=2", "kda.v_heads=4", "kda.head_dim=10", "kda.full_gate=true",
        "kda.dt_init='zeros'"}},
  };
}

}  // namespace

std::vector<MixerCase> AllMixerCases() {
  std::vector<MixerCase> cases;
  for (const std::string& kind : MixerKinds()) {
    const std::vector<std::string> needs = NeedsOf(kind);
    cases.push_back({kind, {kind}, needs});
    if (kind != "full") cases.push_back({kind + "_and_full", {kind, "full"}, needs});
    for (MixerCase variant : Variants()) {
      if (variant.mixers[0] != kind) continue;
      variant.overrides.insert(variant.overrides.begin(), needs.begin(), needs.end());
      cases.push_back(variant);
    }
  }
  return cases;
}

bool ChoosesKeys(const MixerCase& mixer_case) {
  return std::ranges::count(mixer_case.mixers, "dsa") > 0;
}

bool ReadsChosenKeysOnly(const MixerCase& mixer_case) {
  return std::ranges::all_of(mixer_case.mixers, [](const auto& kind) { return kind == "dsa"; });
}

ModelConfig ConfigOf(const MixerCase& mixer_case, const std::vector<std::string>& more) {
  ConfigTable table = *ConfigTable::Parse(R"(
      width = 32
      layers = 2
      loops = 2
      heads = 4
      kv_heads = 2
      ffn = 40
      vocab = 37
  )",
                                          mixer_case.name);
  std::vector<std::string> overrides = mixer_case.overrides;
  overrides.push_back(absl::StrCat("mixers=['", absl::StrJoin(mixer_case.mixers, "','"), "']"));
  overrides.insert(overrides.end(), more.begin(), more.end());
  for (const std::string& assignment : overrides) {
    const absl::Status status = table.Override(assignment);
    CHECK(status.ok()) << status.ToString();
  }
  ModelConfig config = ReadModelConfig(table);
  const absl::Status status = table.Finish();
  CHECK(status.ok()) << status.ToString();
  return config;
}

}  // namespace lt2
