#include "launch/run_config.h"

#include <algorithm>
#include <filesystem>

#include "core/status_macros.h"
#include "core/strings.h"
#include "launch/presets.h"
#include "model/mixers/registry.h"

namespace lt2 {
namespace {

constexpr double kMostTokens = 9e15;       // every count stays exact
constexpr double kMostActivations = 1e15;  // numbers of one micro-batch

// `[model] preset = NAME`: the [model] of that preset behind what is written here.
void MergeModelPreset(ConfigTable model) {
  std::string name;
  model.Read("preset", &name);
  if (name.empty()) return;
  const absl::StatusOr<ConfigTable> preset = ReadPreset(name);
  if (!preset.ok()) return model.AddError("preset", std::string(preset.status().message()));
  model.MergeDefaults(preset->Table("model"));
}

void CheckBatch(const RunConfig& config, const ConfigTable& root) {
  const ConfigTable batch = root.Table("batch");
  if (batch.Wrong("tokens") || batch.Wrong("micro_batch") || root.Table("data").Wrong("sequence")) {
    return;
  }
  const int64_t dp = std::max<int64_t>(1, config.parallel.dp);
  const int64_t unit = config.data.sequence * config.batch.micro_batch * dp;
  if (config.batch.tokens > 0 && unit > 0 && config.batch.tokens % unit != 0) {
    const int64_t below = config.batch.tokens / unit * unit;
    batch.AddError(
        "tokens",
        StrCat(config.batch.tokens, " is not a multiple of data.sequence ", config.data.sequence,
               " × micro_batch ", config.batch.micro_batch, " × parallel.dp ", dp, " = ", unit,
               below > 0 ? StrCat("; the nearest are ", below, " and ") : "; the nearest is ",
               below + unit));
  }
}

void CheckSchedule(const RunConfig& config, const ConfigTable& root) {
  const ConfigTable schedule = root.Table("schedule");
  if (config.batch.tokens <= 0 || schedule.Wrong("total") || schedule.Wrong("warmup")) return;
  for (const auto& [key, quantity] :
       {std::pair{"total", config.schedule.total}, std::pair{"warmup", config.schedule.warmup},
        std::pair{"decay", config.schedule.decay}}) {
    const double unit =
        quantity.unit == Quantity::Unit::kSteps ? static_cast<double>(config.batch.tokens) : 1.0;
    if (quantity.value * unit > kMostTokens) {
      schedule.AddError(key, StrCat(quantity.ToString(), " are more than 9e15 tokens"));
      return;
    }
  }
  const int64_t total = config.schedule.total.Tokens(config.batch.tokens);
  const int64_t warmup = config.schedule.warmup.Tokens(config.batch.tokens);
  const int64_t decay = config.schedule.decay.Tokens(config.batch.tokens);
  if (total > 0 && warmup + decay > total) {
    schedule.AddError("warmup", StrCat("warmup", decay > 0 ? " and decay are " : " is ",
                                       warmup + decay, " tokens, longer than total, ", total));
  }
}

// A micro-batch so large that its bytes could not be counted.
void CheckSize(const RunConfig& config, const ConfigTable& root) {
  const auto product = [](std::initializer_list<int64_t> factors) {
    double all = 1;
    for (int64_t factor : factors) all *= static_cast<double>(factor);
    return all;
  };
  const ModelConfig& m = config.model;
  const double numbers =
      product({config.data.sequence, config.batch.micro_batch}) *
      (product({m.layers, m.loops, m.width + m.ffn + m.heads * m.head_dim}) + product({m.vocab}));
  if (numbers <= kMostActivations) return;
  root.Table("batch").AddError(
      "micro_batch", StrCat(config.batch.micro_batch, " sequences of ", config.data.sequence,
                            " tokens through this model need more than any machine has; lower it, "
                            "or data.sequence"));
}

absl::Status CheckTensorParallel(const RunConfig& config) {
  const absl::Status status =
      CheckSplit(config.model, {.ranks = static_cast<int>(config.parallel.tp)});
  if (status.ok()) return status;
  return absl::InvalidArgumentError(StrCat("parallel.", std::string(status.message())));
}

absl::StatusOr<RunConfig> ReadRunConfig(ConfigTable root, const std::vector<std::string>& sets) {
  for (const std::string& set : sets) RETURN_IF_ERROR(root.Override(set));
  const std::string source = root.source();
  RunConfig config;
  const ConfigTable model = root.Table("model");
  MergeModelPreset(model);
  config.run = RunSection::Read(root.Table("run"), std::filesystem::path(source).stem().string());
  config.model = ReadModelConfig(model);
  ReadDataConfig(root.Table("data"), &config.data);
  config.batch = BatchConfig::Read(root.Table("batch"));
  config.optimizer = OptimizerConfig::Read(root.Table("optimizer"));
  config.schedule = ScheduleConfig::Read(root.Table("schedule"));
  config.parallel = ParallelConfig::Read(root.Table("parallel"));
  config.checkpoint = CheckpointConfig::Read(root.Table("checkpoint"));
  config.log = LogConfig::Read(root.Table("log"));
  CheckBatch(config, root);
  CheckSchedule(config, root);
  CheckSize(config, root);
  RETURN_IF_ERROR(root.Finish());
  RETURN_IF_ERROR(CheckTensorParallel(config));
  for (DataConfig::Train& train : config.data.train) {
    train.path = ResolveInputPath(train.path, source);
  }
  if (config.data.valid) config.data.valid = ResolveInputPath(*config.data.valid, source);
  return config;
}

}  // namespace

absl::StatusOr<RunConfig> ParseRunConfig(std::string_view text, const std::string& source,
                                         const std::vector<std::string>& sets) {
  ASSIGN_OR_RETURN(const ConfigTable root, ConfigTable::Parse(text, source));
  return ReadRunConfig(root, sets);
}

absl::StatusOr<RunConfig> LoadRunConfig(const std::string& config,
                                        const std::vector<std::string>& sets) {
  ASSIGN_OR_RETURN(const ConfigTable root, ReadConfig(config));
  return ReadRunConfig(root, sets);
}

}  // namespace lt2
