#include "launch/run_config.h"

#include <algorithm>
#include <filesystem>

#include "core/file.h"
#include "core/status_macros.h"
#include "core/strings.h"
#include "launch/presets.h"
#include "model/mixers/registry.h"

namespace lt2 {
namespace {

// `[model] preset = NAME`: the [model] of that preset behind what is written here.
void MergeModelPreset(const ConfigTable& root, ConfigTable model) {
  std::string name;
  model.Read("preset", &name);
  if (name.empty()) return;
  const absl::StatusOr<std::string> directory = PresetDirectory();
  const std::string path = directory.ok() ? JoinPath(*directory, StrCat(name, ".toml")) : "";
  if (path.empty() || !FileSystem::Get().Exists(path)) {
    const absl::StatusOr<std::string> found = FindConfigFile(name);
    model.AddError("preset", std::string(found.ok() ? "names a preset, not a file"
                                                    : found.status().message()));
    return;
  }
  absl::StatusOr<ConfigTable> preset = ConfigTable::ParseFile(path);
  if (!preset.ok()) {
    root.AddError("model", std::string(preset.status().message()));
    return;
  }
  model.MergeDefaults(preset->Table("model"));
}

// A preset's options of mixers that this model does not use are no mistake.
void AcceptUnusedMixers(const ConfigTable& model, const std::vector<std::string>& kinds) {
  for (const std::string& kind : MixerKinds()) {
    if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) model.Accept(kind);
  }
}

void CheckBatch(const RunConfig& config, const ConfigTable& root) {
  const ConfigTable batch = root.Table("batch");
  const int64_t dp = std::max<int64_t>(1, config.parallel.dp);
  const int64_t unit = config.data.sequence * config.batch.micro_batch * dp;
  if (config.batch.tokens > 0 && unit > 0 && config.batch.tokens % unit != 0) {
    const int64_t below = config.batch.tokens / unit * unit;
    batch.AddError(
        "tokens",
        StrCat(config.batch.tokens, " is not a multiple of data.sequence ", config.data.sequence,
               " × micro_batch ", config.batch.micro_batch, " × parallel.dp ", dp, " = ", unit,
               "; the nearest are ", below > 0 ? StrCat(below, " and ") : "", below + unit));
  }
}

void CheckSchedule(const RunConfig& config, const ConfigTable& root) {
  if (config.batch.tokens <= 0) return;
  const int64_t total = config.schedule.total.Tokens(config.batch.tokens);
  const int64_t warmup = config.schedule.warmup.Tokens(config.batch.tokens);
  const int64_t decay = config.schedule.decay.Tokens(config.batch.tokens);
  if (total > 0 && warmup + decay > total) {
    root.Table("schedule")
        .AddError("warmup", StrCat("warmup", decay > 0 ? " and decay are " : " is ", warmup + decay,
                                   " tokens, longer than total, ", total));
  }
}

// What the contract knows and this version cannot do.
void CheckSupported(const RunConfig& config, const ConfigTable& root) {
  const ConfigTable parallel = root.Table("parallel");
  if (config.parallel.precision == Precision::kBf16) {
    parallel.AddError(
        "precision", "\"bf16\" needs CUDA kernels, which this version does not have; use \"fp32\"");
  }
}

absl::StatusOr<RunConfig> ReadRunConfig(const ConfigTable& root, const std::string& source) {
  RunConfig config;
  const ConfigTable model = root.Table("model");
  MergeModelPreset(root, model);
  config.run = RunSection::Read(root.Table("run"), std::filesystem::path(source).stem().string());
  config.model = ReadModelConfig(model);
  AcceptUnusedMixers(model, config.model.mixers);
  ReadDataConfig(root.Table("data"), &config.data);
  config.batch = BatchConfig::Read(root.Table("batch"));
  config.optimizer = OptimizerConfig::Read(root.Table("optimizer"));
  config.schedule = ScheduleConfig::Read(root.Table("schedule"));
  config.parallel = ParallelConfig::Read(root.Table("parallel"));
  config.checkpoint = CheckpointConfig::Read(root.Table("checkpoint"));
  config.log = LogConfig::Read(root.Table("log"));
  CheckBatch(config, root);
  CheckSchedule(config, root);
  CheckSupported(config, root);
  RETURN_IF_ERROR(root.Finish());
  for (DataConfig::Train& train : config.data.train) {
    train.path = ResolveInputPath(train.path, source);
  }
  if (config.data.valid) config.data.valid = ResolveInputPath(*config.data.valid, source);
  return config;
}

}  // namespace

absl::StatusOr<RunConfig> ParseRunConfig(std::string_view text, const std::string& source,
                                         const std::vector<std::string>& sets) {
  ASSIGN_OR_RETURN(ConfigTable root, ConfigTable::Parse(text, source));
  for (const std::string& set : sets) RETURN_IF_ERROR(root.Override(set));
  return ReadRunConfig(root, source);
}

absl::StatusOr<RunConfig> LoadRunConfig(const std::string& config,
                                        const std::vector<std::string>& sets) {
  ASSIGN_OR_RETURN(std::string path, FindConfigFile(config));
  ASSIGN_OR_RETURN(std::string text, FileSystem::Get().ReadFile(path));
  return ParseRunConfig(text, path, sets);
}

absl::StatusOr<Mesh> MeshFor(const RunConfig& config, int ranks) {
  ASSIGN_OR_RETURN(Mesh mesh, config.parallel.MeshFor(ranks));
  const int64_t micro_step = config.data.sequence * config.batch.micro_batch;
  if (config.batch.tokens % (micro_step * mesh.dp) != 0) {
    return absl::InvalidArgumentError(StrCat(
        "batch.tokens: ", config.batch.tokens, " is not a multiple of data.sequence ",
        config.data.sequence, " × batch.micro_batch ", config.batch.micro_batch, " × ", mesh.dp,
        " data-parallel ranks = ", micro_step * mesh.dp,
        "; change batch.tokens or batch.micro_batch, or start a number of ranks that divides ",
        config.batch.tokens / micro_step));
  }
  return mesh;
}

}  // namespace lt2
