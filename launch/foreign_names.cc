#include "launch/foreign_names.h"

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <string_view>

#include "absl/strings/str_join.h"
#include "core/strings.h"
#include "model/language_model.h"
#include "model/mixers/registry.h"

namespace lt2 {
namespace {

struct Names {
  std::string_view ours;
  std::array<std::string_view, 2> theirs;  // an empty one is none
};

constexpr Names kModelNames[] = {
    {"embed.weight", {"model.embed_tokens.weight", "model.embeddings.weight"}},
    {"norm.weight", {"model.norm.weight"}},
    {"head.weight", {"lm_head.weight"}},
    {"exit_gate.weight", {"model.early_exit_gate.weight"}},
    {"exit_gate.bias", {"model.early_exit_gate.bias"}}};

// After "layers.N." and "model.layers.N.".
constexpr Names kLayerNames[] = {
    {"norm1.weight", {"input_layernorm.weight", "attn_norm.weight"}},
    {"norm1_post.weight", {"input_layernorm_2.weight"}},
    {"norm2.weight", {"post_attention_layernorm.weight", "mlp_norm.weight"}},
    {"norm2_post.weight", {"post_attention_layernorm_2.weight"}},
    {"ffn.gate.weight", {"mlp.gate_proj.weight"}},
    {"ffn.up.weight", {"mlp.up_proj.weight"}},
    {"ffn.down.weight", {"mlp.down_proj.weight"}}};

// Where their layers have a mixer's parameters.
constexpr std::string_view kMixerPlaces[] = {"self_attn.", "attn."};

// Of values that follow from the configuration.
bool IsComputed(const std::string& theirs) { return theirs.ends_with(".rotary_emb.inv_freq"); }

// The number of the layer in a name of either kind; "" of none.
std::string_view LayerOf(std::string_view name) {
  constexpr std::string_view kLayers = "layers.";
  const size_t at = name.find(kLayers);
  if (at == std::string_view::npos) return "";
  const std::string_view rest = name.substr(at + kLayers.size());
  return rest.substr(0, rest.find('.'));
}

// A parameter of ours and what it may be called over there, its own name aside.
struct Wanted {
  const ParamSpec* spec;
  std::vector<std::string> theirs;
};

// All parameters of a model; those that share a tensor of theirs in the order of its rows.
class WantedList {
 public:
  WantedList(const ModelConfig& config, const std::vector<ParamSpec>& specs) {
    for (const ParamSpec& spec : specs) left_.emplace(spec.name, &spec);
    for (const Names& names : kModelNames) Add(std::string(names.ours), {""}, names.theirs);
    const std::vector<std::string> kinds = *LayerKinds(config);
    for (size_t i = 0; i < kinds.size(); ++i) AddLayer(StrCat("layers.", i, "."), kinds[i]);
    for (const auto& [name, spec] : left_) all_.push_back({spec, {}});
  }
  const std::vector<Wanted>& all() const { return all_; }

 private:
  void AddLayer(const std::string& layer, const std::string& kind) {
    for (const Names& names : kLayerNames) {
      Add(StrCat(layer, names.ours), {"model." + layer}, names.theirs);
    }
    std::vector<std::string> places;
    for (const std::string_view place : kMixerPlaces) {
      places.push_back(StrCat("model.", layer, place));
    }
    for (const ForeignTable::Name& name : ForeignNamesOf(kind).params) {
      const std::string_view theirs = name.theirs;
      Add(StrCat(layer, "mixer.", name.ours), places, {&theirs, 1});
      Add(name.ours, {"model."}, {&theirs, 1});  // layers share it
    }
  }

  void Add(const std::string& ours, const std::vector<std::string>& places,
           std::span<const std::string_view> theirs) {
    const auto found = left_.find(ours);
    if (found == left_.end()) return;
    Wanted wanted{found->second, {}};
    for (const std::string& place : places) {
      for (const std::string_view name : theirs) {
        if (!name.empty()) wanted.theirs.push_back(StrCat(place, name));
      }
    }
    all_.push_back(std::move(wanted));
    left_.erase(found);
  }

  std::map<std::string, const ParamSpec*> left_;
  std::vector<Wanted> all_;
};

std::vector<int64_t> WithoutOnes(std::span<const int64_t> extents) {
  std::vector<int64_t> others;
  std::copy_if(extents.begin(), extents.end(), std::back_inserter(others),
               [](int64_t extent) { return extent != 1; });
  return others;
}

std::span<const int64_t> Extents(const Shape& shape) { return {shape.begin(), shape.end()}; }

// Whether `ours`, row after row, are a tensor of shape `theirs`.
bool AreRowsOf(const Shape& theirs, const std::vector<const ParamSpec*>& ours) {
  if (ours.size() == 1) return WithoutOnes(Extents(theirs)) == WithoutOnes(Extents(ours[0]->shape));
  if (theirs.rank() == 0) return false;
  int64_t rows = 0;
  for (const ParamSpec* spec : ours) {
    rows += spec->shape[0];
    if (WithoutOnes(Extents(theirs).subspan(1)) != WithoutOnes(Extents(spec->shape).subspan(1))) {
      return false;
    }
  }
  return rows == theirs[0];
}

// What does not fit, a line a kind.
class Mismatches {
 public:
  void Add(const std::string& what, const std::string& line) { lines_[what].push_back(line); }
  // Whether one more would not be shown.
  bool Full(const std::string& what) const {
    const auto found = lines_.find(what);
    return found != lines_.end() && found->second.size() >= kShown;
  }
  std::string ToString() const {  // "" if there is nothing
    std::string text;
    for (const auto& [what, lines] : lines_) {
      StrAppend(&text, "\n  ", what, ": ", lines.size(),
                lines.size() == 1 ? " tensor" : " tensors");
      for (size_t i = 0; i < lines.size() && i < kShown; ++i) StrAppend(&text, "\n    ", lines[i]);
      if (lines.size() > kShown) StrAppend(&text, "\n    …");
    }
    return text;
  }

 private:
  static constexpr size_t kShown = 12;
  std::map<std::string, std::vector<std::string>> lines_;
};

// One model matched with one configuration.
class Matcher {
 public:
  Matcher(const ModelConfig& config, const SafetensorsModel& model)
      : config_(config), model_(model) {}

  absl::StatusOr<std::vector<ImportedParam>> Run(const std::vector<Wanted>& wanted) {
    for (const Wanted& one : wanted) Take(one);
    TakeZeros();
    CompareShapes();
    NameTheRest();
    std::string text = mismatches_.ToString();
    if (foreign_ && config_.rope_interleaved) {
      StrAppend(&text,
                "\n  rotary pairs are a head's halves over there: set model.rope_style = \"half\"");
    }
    if (!text.empty()) {
      return absl::InvalidArgumentError(StrCat(model_.path(), " does not fit this configuration",
                                               text, "\nset [model] to what the tensors are of"));
    }
    std::sort(params_.begin(), params_.end(),
              [](const ImportedParam& a, const ImportedParam& b) { return a.name < b.name; });
    return params_;
  }

 private:
  void Take(const Wanted& wanted) {
    const ParamSpec& spec = *wanted.spec;
    std::string from = model_.Find(spec.name) != nullptr ? spec.name : "";
    for (const std::string& name : wanted.theirs) {
      if (from.empty() && model_.Find(name) != nullptr) from = name;
    }
    if (from.empty()) return missing_.push_back(&wanted);
    foreign_ |= from != spec.name;
    std::vector<const ParamSpec*>& sharing = taken_[from];
    int64_t begin = 0;
    for (const ParamSpec* other : sharing) begin += other->shape.size();
    sharing.push_back(&spec);
    params_.push_back({.name = spec.name, .shape = spec.shape, .from = from, .begin = begin});
  }

  // What other programs do not have, and what leaves theirs as they are where it is zero.
  void TakeZeros() {
    if (!foreign_) return;
    std::erase_if(missing_, [&](const Wanted* wanted) {
      const ParamSpec& spec = *wanted->spec;
      if (spec.name != "loop.residual") return false;
      params_.push_back({.name = spec.name, .shape = spec.shape, .from = ""});
      return true;
    });
  }

  void CompareShapes() {
    for (const auto& [name, ours] : taken_) {
      const Shape& theirs = model_.Find(name)->shape;
      if (AreRowsOf(theirs, ours)) continue;
      std::vector<std::string> wanted;
      for (const ParamSpec* spec : ours) {
        wanted.push_back(StrCat(spec->name, " ", spec->shape.ToString()));
      }
      mismatches_.Add("of another shape", StrCat(name, " ", theirs.ToString(), " for our ",
                                                 absl::StrJoin(wanted, ", ")));
    }
  }

  void NameTheRest() {
    std::vector<std::string> surplus, unfilled;
    for (const auto& [name, tensor] : model_.tensors()) {
      if (!taken_.contains(name) && !IsComputed(name)) surplus.push_back(name);
    }
    for (const Wanted* wanted : missing_) {
      const std::vector<std::string> names = NamesOf(*wanted);
      unfilled.insert(unfilled.end(), names.begin(), names.end());
      const std::string& ours = wanted->spec->name;
      mismatches_.Add(kMissing, StrCat(absl::StrJoin(names, " or "),
                                       names[0] == ours ? "" : StrCat(", our ", ours),
                                       Nearest(kMissing, names[0], surplus)));
    }
    for (const std::string& name : surplus) {
      const bool head = name == "lm_head.weight" || name == "head.weight";
      mismatches_.Add(kSurplus, StrCat(name, head ? "; set model.tie_embeddings = false" : "",
                                       Nearest(kSurplus, name, unfilled)));
    }
  }

  // What a parameter may be called in a model like this one.
  std::vector<std::string> NamesOf(const Wanted& wanted) const {
    if (foreign_ && !wanted.theirs.empty()) return wanted.theirs;
    return {wanted.spec->name};
  }

  // Looked for only where it is shown, for it takes long, and in the same layer: all layers have
  // similar names.
  std::string Nearest(const std::string& what, const std::string& name,
                      std::vector<std::string> known) const {
    if (mismatches_.Full(what)) return "";
    std::erase_if(known, [&](const std::string& other) { return LayerOf(other) != LayerOf(name); });
    const std::string near = NearestName(name, known);
    return near.empty() ? "" : StrCat("; did you mean ", near, "?");
  }

  static constexpr char kMissing[] = "missing", kSurplus[] = "left over";

  const ModelConfig& config_;
  const SafetensorsModel& model_;
  bool foreign_ = false;  // some names are not ours
  std::vector<ImportedParam> params_;
  std::map<std::string, std::vector<const ParamSpec*>> taken_;  // by name of theirs
  std::vector<const Wanted*> missing_;
  Mismatches mismatches_;
};

}  // namespace

absl::StatusOr<std::vector<ImportedParam>> MatchParams(const ModelConfig& config,
                                                       const SafetensorsModel& model) {
  LanguageModel shape(config);
  const std::vector<ParamSpec> specs = shape.params().specs();
  const WantedList wanted(config, specs);
  return Matcher(config, model).Run(wanted.all());
}

}  // namespace lt2
