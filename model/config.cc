#include "model/config.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "core/config_range.h"
#include "core/strings.h"
#include "model/mixers/registry.h"

namespace lt2 {
namespace {

// Far beyond any model, and small enough that no count of elements or bytes overflows.
constexpr int64_t kMostWidth = int64_t{1} << 20;  // and ffn
constexpr int64_t kMostVocab = int64_t{1} << 24;
constexpr int64_t kMostHeads = 4096;               // and the width of one
constexpr int64_t kMostLayers = 4096;              // and loops
constexpr int64_t kMostBlocks = int64_t{1} << 16;  // layers × loops

void ReadSize(const ConfigTable& table, std::string_view key, int64_t most, int64_t* value) {
  if (*value > 0 || table.Has(key)) {
    ReadInRange(table, key, 1, most, value);
  } else {
    table.Read(key, value);  // it is known here
    table.AddError(key, StrCat("is required: from 1 to ", most));
  }
}

void ReadLoopOptions(const ConfigTable& model, ModelConfig* c) {
  model.Read("loop_residual", &c->loop_residual);
  model.Read("sandwich_norm", &c->sandwich_norm);
  model.Read("loop_norm", &c->loop_norm);
  model.Read("exit_gate", &c->exit_gate);
  ReadInRange(model, "exit_entropy", 0.0, 1e3, &c->exit_entropy);
  if (c->exit_gate && c->loops < 2 && !model.Wrong("loops")) {
    model.AddError("exit_gate",
                   "chooses among loops: it needs loops of 2 or more, loops is 1; "
                   "raise it, or set exit_gate to false");
  }
}

// `sized`: width and heads are sound.
void ReadHeads(const ConfigTable& model, bool sized, ModelConfig* c) {
  c->kv_heads = c->heads;
  c->head_dim = sized ? c->width / c->heads : 0;
  model.Read("kv_heads", &c->kv_heads);
  model.Read("head_dim", &c->head_dim);
  if (!sized) return;
  if (!model.Has("head_dim") && c->width % c->heads != 0) {
    model.AddError("heads", StrCat(c->heads, " does not divide width ", c->width,
                                   "; choose a divisor or set head_dim"));
    return;
  }
  if (c->kv_heads <= 0 || c->heads % c->kv_heads != 0) {
    model.AddError("kv_heads", StrCat(c->kv_heads, " does not divide heads ", c->heads));
  }
  if (c->head_dim <= 0 || c->head_dim % 2 != 0 || c->head_dim > kMostHeads) {
    model.AddError("head_dim", StrCat("must be even (rotary pairs), from 2 to ", kMostHeads,
                                      ", is ", c->head_dim));
  }
}

// Whether the mixers and their layout are sound.
bool CheckMixers(const ConfigTable& model, const ModelConfig& c) {
  const std::vector<std::string> known = MixerKinds();
  if (c.mixers.empty()) {
    model.AddError("mixers",
                   StrCat("must name at least one kind of: ", absl::StrJoin(known, ", ")));
  }
  for (const std::string& kind : c.mixers) {
    if (std::find(known.begin(), known.end(), kind) != known.end()) continue;
    const std::string near = NearestName(kind, known);
    model.AddError(
        "mixers", StrCat("unknown kind '", kind, "'; this version has ", absl::StrJoin(known, ", "),
                         near.empty() ? "" : "; did you mean '" + near + "'?"));
  }
  if (model.Wrong("mixers") || model.Wrong("layers")) return false;
  if (auto kinds = LayerKinds(c); !kinds.ok()) {
    model.AddError("layout", std::string(kinds.status().message()));
  }
  return !model.Wrong("layout");
}

}  // namespace

ModelConfig ReadModelConfig(const ConfigTable& model) {
  ModelConfig c;
  model.Accept("preset");
  ReadSize(model, "width", kMostWidth, &c.width);
  ReadSize(model, "layers", kMostLayers, &c.layers);
  ReadSize(model, "loops", kMostLayers, &c.loops);
  ReadSize(model, "heads", kMostHeads, &c.heads);
  ReadSize(model, "vocab", kMostVocab, &c.vocab);
  const bool sized = !model.Wrong("width") && !model.Wrong("heads");
  ReadHeads(model, sized, &c);
  model.Read("ffn", &c.ffn);
  if (sized && !model.Has("ffn")) c.ffn = (c.width * 8 / 3 + 255) / 256 * 256;
  if (sized || model.Has("ffn")) ReadInRange(model, "ffn", 1, 8 * kMostWidth, &c.ffn);
  if (!model.Wrong("layers") && !model.Wrong("loops") && c.layers * c.loops > kMostBlocks) {
    model.AddError("loops",
                   StrCat(c.layers, " layers × ", c.loops, " loops are more than ", kMostBlocks));
  }
  model.Read("tie_embeddings", &c.tie_embeddings);
  ReadPositive(model, "rope_theta", &c.rope_theta);
  c.rope_interleaved = model.ReadChoice("rope_style", {"half", "interleaved"}, 0) == 1;
  ReadPositive(model, "norm_eps", &c.norm_eps);
  model.Read("mixers", &c.mixers);
  model.Read("layout", &c.layout);
  model.Read("attention_gate", &c.attention_gate);
  ReadLoopOptions(model, &c);

  const bool judge = CheckMixers(model, c) && sized;
  for (const std::string& kind : MixerKinds()) {
    const bool given = model.Has(kind);
    const bool used = std::find(c.mixers.begin(), c.mixers.end(), kind) != c.mixers.end();
    if (given) c.mixer_options[kind] = model.Table(kind);
    if (!judge) {
      model.Accept(kind);
    } else if (given || used) {  // a table must be sound whether its kind is in use or not
      CheckMixerOptions(kind, c, model.Table(kind));
    }
  }
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
