// The resolved configuration as text: RunConfig::ToToml.
#include <algorithm>

#include "launch/run_config.h"

namespace lt2 {
namespace {

ConfigTable ModelTable(const ModelConfig& model) {
  ConfigTable table;
  table.Set("width", model.width);
  table.Set("layers", model.layers);
  table.Set("loops", model.loops);
  table.Set("heads", model.heads);
  table.Set("kv_heads", model.kv_heads);
  table.Set("head_dim", model.head_dim);
  table.Set("ffn", model.ffn);
  table.Set("vocab", model.vocab);
  table.Set("tie_embeddings", model.tie_embeddings);
  table.Set("rope_theta", model.rope_theta);
  table.Set("rope_style", std::string_view(model.rope_interleaved ? "interleaved" : "half"));
  table.Set("norm_eps", model.norm_eps);
  table.Set("mixers", model.mixers);
  table.Set("layout", std::string_view(model.layout));
  table.Set("attention_gate", model.attention_gate);
  table.Set("loop_residual", model.loop_residual);
  table.Set("sandwich_norm", model.sandwich_norm);
  table.Set("loop_norm", model.loop_norm);
  table.Set("exit_gate", model.exit_gate);
  table.Set("exit_entropy", model.exit_entropy);
  for (const auto& [kind, options] : model.mixer_options) {
    if (std::count(model.mixers.begin(), model.mixers.end(), kind) > 0) {
      table.SetTable(kind, options);
    }
  }
  return table;
}

template <class Section>
void SetSection(ConfigTable& root, std::string_view name, const Section& section) {
  ConfigTable table;
  section.Write(&table);
  root.SetTable(name, table);
}

}  // namespace

std::string RunConfig::ToToml() const {
  ConfigTable root;
  SetSection(root, "run", run);
  root.SetTable("model", ModelTable(model));
  ConfigTable data_table;
  WriteDataConfig(data, &data_table);
  root.SetTable("data", data_table);
  SetSection(root, "batch", batch);
  SetSection(root, "optimizer", optimizer);
  SetSection(root, "schedule", schedule);
  SetSection(root, "parallel", parallel);
  SetSection(root, "checkpoint", checkpoint);
  SetSection(root, "log", log);
  return root.ToToml();
}

}  // namespace lt2
