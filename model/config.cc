#include "model/config.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "core/strings.h"
#include "model/mixers/registry.h"

namespace lt2 {
namespace {

void RequirePositive(const ConfigTable& table, std::string_view key, int64_t value) {
  if (value > 0) return;
  table.AddError(key, table.Has(key) ? StrCat("must be positive, is ", value)
                                     : "is required (a positive integer)");
}

// Options of later models that this version must not take silently.
void RefuseUnsupported(const ConfigTable& table) {
  for (std::string_view key : {"sandwich_norm", "loop_norm", "exit_gate"}) {
    bool on = false;
    table.Read(key, &on);
    if (on) table.AddError(key, "is not supported by this version; remove it or set it to false");
  }
}

}  // namespace

ModelConfig ReadModelConfig(const ConfigTable& model) {
  ModelConfig c;
  model.Accept("preset");
  model.Read("width", &c.width);
  model.Read("layers", &c.layers);
  model.Read("loops", &c.loops);
  model.Read("heads", &c.heads);
  model.Read("vocab", &c.vocab);
  for (auto [key, value] : {std::pair<std::string_view, int64_t>{"width", c.width},
                            {"layers", c.layers},
                            {"loops", c.loops},
                            {"heads", c.heads},
                            {"vocab", c.vocab}}) {
    RequirePositive(model, key, value);
  }
  c.kv_heads = c.heads;
  c.head_dim = c.heads > 0 ? c.width / c.heads : 0;
  c.ffn = (c.width * 8 / 3 + 255) / 256 * 256;
  model.Read("kv_heads", &c.kv_heads);
  model.Read("head_dim", &c.head_dim);
  model.Read("ffn", &c.ffn);
  RequirePositive(model, "ffn", c.ffn);
  model.Read("tie_embeddings", &c.tie_embeddings);
  model.Read("rope_theta", &c.rope_theta);
  c.rope_interleaved = model.ReadChoice("rope_style", {"half", "interleaved"}, 0) == 1;
  model.Read("norm_eps", &c.norm_eps);
  model.Read("mixers", &c.mixers);
  model.Read("layout", &c.layout);
  model.Read("attention_gate", &c.attention_gate);
  model.Read("loop_residual", &c.loop_residual);
  RefuseUnsupported(model);

  if (c.heads > 0 && !model.Has("head_dim") && c.width % c.heads != 0) {
    model.AddError("heads", StrCat(c.heads, " does not divide width ", c.width,
                                   "; choose a divisor or set head_dim"));
  }
  if (c.heads > 0 && (c.kv_heads <= 0 || c.heads % c.kv_heads != 0)) {
    model.AddError("kv_heads", StrCat(c.kv_heads, " does not divide heads ", c.heads));
  }
  if (c.head_dim <= 0 || c.head_dim % 2 != 0) {
    model.AddError("head_dim", StrCat("must be positive and even (rotary pairs), is ", c.head_dim));
  }
  for (const std::string& kind : MixerKinds()) {
    if (model.Has(kind)) c.mixer_options[kind] = model.Table(kind);
  }
  if (c.mixers.empty()) model.AddError("mixers", "must name at least one kind");
  for (const std::string& kind : c.mixers) {
    const std::vector<std::string> known = MixerKinds();
    if (std::find(known.begin(), known.end(), kind) == known.end()) {
      const std::string near = NearestName(kind, known);
      model.AddError("mixers", StrCat("unknown kind '", kind, "'; this version has ",
                                      absl::StrJoin(known, ", "),
                                      near.empty() ? "" : "; did you mean '" + near + "'?"));
      return c;
    }
  }
  if (auto kinds = LayerKinds(c); !kinds.ok()) {
    model.AddError("layout", std::string(kinds.status().message()));
  }
  for (const std::string& kind : c.mixers) CheckMixerOptions(kind, c, model.Table(kind));
  return c;
}

absl::StatusOr<std::vector<std::string>> LayerKinds(const ModelConfig& config) {
  const std::vector<std::string>& pattern = config.mixers;
  const std::string& last = pattern.back();
  std::vector<std::string> kinds(config.layers), others;
  for (const std::string& kind : pattern) {
    if (kind != last) others.push_back(kind);
  }
  if (others.empty()) others.push_back(last);
  int64_t count = 0;
  for (int64_t i = 0; i < config.layers; ++i) {
    kinds[i] = pattern[i % pattern.size()];
    count += kinds[i] == last;
  }
  if (config.layout == "interleave") return kinds;

  int64_t front = 0, back = 0;  // layers of the last kind at either end
  constexpr std::string_view kBookend = "bookend:";
  if (config.layout.starts_with(kBookend)) {
    if (!absl::SimpleAtoi(config.layout.substr(kBookend.size()), &front) || front < 1 ||
        2 * front > config.layers) {
      return absl::InvalidArgumentError(StrCat(
          "'", config.layout, "': K must be from 1 to half the layers, ", config.layers / 2));
    }
    back = front;
  } else if (config.layout == "front") {
    front = count;
  } else if (config.layout == "back") {
    back = count;
  } else {
    return absl::InvalidArgumentError(StrCat("unknown layout '", config.layout,
                                             "'; allowed are interleave, bookend:K, front, back"));
  }
  for (int64_t i = 0; i < config.layers; ++i) {
    const bool end = i < front || i >= config.layers - back;
    kinds[i] = end ? last : others[(i - front) % others.size()];
  }
  return kinds;
}

}  // namespace lt2
