#include "launch/foreign_config.h"

#include <nlohmann/json.hpp>

#include "checkpoints/strict_json.h"
#include "core/strings.h"

namespace lt2 {
namespace {

using Json = nlohmann::json;

struct Setting {
  const char* theirs;
  const char* ours;  // of [model]
  Json value;        // here
};

std::vector<Setting> SettingsOf(const ModelConfig& config, bool attention_heads) {
  std::vector<Setting> settings = {{"hidden_size", "width", config.width},
                                   {"num_hidden_layers", "layers", config.layers},
                                   {"intermediate_size", "ffn", config.ffn},
                                   {"vocab_size", "vocab", config.vocab},
                                   {"rope_theta", "rope_theta", config.rope_theta},
                                   {"rms_norm_eps", "norm_eps", config.norm_eps},
                                   {"norm_eps", "norm_eps", config.norm_eps},
                                   {"tie_word_embeddings", "tie_embeddings", config.tie_embeddings},
                                   {"total_ut_steps", "loops", config.loops}};
  if (!attention_heads) return settings;  // head_dim is then of another mixer
  settings.push_back({"num_attention_heads", "heads", config.heads});
  settings.push_back({"num_key_value_heads", "kv_heads", config.kv_heads});
  settings.push_back({"head_dim", "head_dim", config.head_dim});
  return settings;
}

// What would have to be computed otherwise than here.
std::vector<std::string> Unknown(const Json& json) {
  std::vector<std::string> lines;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const auto rope = json.find(key);
    if (rope == json.end() || rope->is_null()) continue;
    const std::string type = rope->value("rope_type", rope->value("type", ""));
    if (type != "default") {
      lines.push_back(StrCat(key, " is ", rope->dump(), ", lt2 knows rope_theta alone"));
    }
  }
  if (json.value("partial_rotary_factor", 1.0) != 1.0) {
    lines.push_back("partial_rotary_factor is not 1, lt2 rotates whole heads");
  }
  const std::string activation = json.value("hidden_act", "silu");
  if (activation != "silu" && activation != "swish") {
    lines.push_back(StrCat("hidden_act is ", activation, ", lt2 has silu"));
  }
  return lines;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> DifferencesFrom(std::string_view json,
                                                         const std::string& source,
                                                         const ModelConfig& config) {
  try {
    Json theirs = ParseStrictly(json);
    std::vector<std::string> lines = Unknown(theirs);
    // Where newer files have it.
    const Json rope = theirs.value("rope_parameters", Json::object());
    if (rope.contains("rope_theta")) theirs["rope_theta"] = rope["rope_theta"];
    for (const Setting& setting : SettingsOf(config, theirs.contains("num_attention_heads"))) {
      const auto found = theirs.find(setting.theirs);
      if (found == theirs.end() || found->is_null() || *found == setting.value) continue;
      lines.push_back(StrCat(setting.theirs, " is ", found->dump(), ", model.", setting.ours,
                             " here ", setting.value.dump()));
    }
    return lines;
  } catch (const std::exception& error) {
    return absl::DataLossError(StrCat(source, ": ", error.what()));
  }
}

}  // namespace lt2
