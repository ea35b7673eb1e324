#include "launch/import_model.h"

#include <filesystem>

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "checkpoints/export.h"
#include "checkpoints/import.h"
#include "core/file.h"
#include "core/log.h"
#include "core/status_macros.h"
#include "core/strings.h"
#include "launch/foreign_config.h"
#include "launch/foreign_names.h"
#include "launch/run_config.h"

namespace lt2 {
namespace {

std::string Metadata(const SafetensorsModel& model, const std::string& key) {
  const auto found = model.metadata().find(key);
  return found == model.metadata().end() ? "" : found->second;
}

// 0 where nothing is said.
absl::StatusOr<int64_t> CountIn(const SafetensorsModel& model, const std::string& key) {
  const std::string text = Metadata(model, key);
  int64_t count = 0;
  if (text.empty() || (absl::SimpleAtoi(text, &count) && count >= 0)) return count;
  return absl::DataLossError(
      StrCat(model.path(), ": metadata ", key, " is '", text, "', no whole number"));
}

absl::StatusOr<RunConfig> ConfigFor(const ImportOptions& options, const SafetensorsModel& model) {
  if (!options.config.empty()) return LoadRunConfig(options.config, options.sets);
  const std::string text = Metadata(model, kMetadataConfig);
  if (text.empty()) {
    return absl::InvalidArgumentError(
        StrCat(options.path,
               ": says no configuration of lt2; name one whose [model] describes it, with "
               "--config FILE or --config PRESET"));
  }
  return ParseRunConfig(text, StrCat(options.path, " (", kMetadataConfig, ")"), options.sets);
}

void WarnOfDifferences(const std::string& path, const ModelConfig& config) {
  const std::filesystem::path at(path);
  const std::string folder = FileSystem::Get().IsDirectory(path) ? at : at.parent_path();
  const std::string file = JoinPath(folder, "config.json");
  const absl::StatusOr<std::string> text = FileSystem::Get().ReadFile(file, kMostText);
  if (!text.ok()) return;
  const absl::StatusOr<std::vector<std::string>> lines = DifferencesFrom(*text, file, config);
  if (!lines.ok()) return LogWarn(std::string(lines.status().message()));
  if (!lines->empty()) {
    LogWarn(StrCat(file, ": not what the configuration says:\n  ", absl::StrJoin(*lines, "\n  ")));
  }
}

absl::StatusOr<CheckpointInfo> InfoOf(const SafetensorsModel& model, const RunConfig& config) {
  CheckpointInfo info;
  ASSIGN_OR_RETURN(info.step, CountIn(model, kMetadataStep));
  ASSIGN_OR_RETURN(info.tokens, CountIn(model, kMetadataTokens));
  info.tokenizer = Metadata(model, kMetadataTokenizer);
  if (info.tokenizer.empty()) info.tokenizer = "unknown";
  info.tokenizer_hash = Metadata(model, kMetadataTokenizerHash);
  info.seed = static_cast<uint64_t>(config.run.seed);
  info.config = config.ToToml();
  info.mesh = "imported";
  info.extra = {{"imported_from", model.path()}};
  return info;
}

}  // namespace

absl::StatusOr<ImportedModel> ImportModel(const ImportOptions& options, const std::string& to,
                                          const ScanOptions& scan) {
  ASSIGN_OR_RETURN(const SafetensorsModel model, SafetensorsModel::Open(options.path));
  ASSIGN_OR_RETURN(const RunConfig config, ConfigFor(options, model));
  ASSIGN_OR_RETURN(const std::vector<ImportedParam> params, MatchParams(config.model, model));
  WarnOfDifferences(options.path, config.model);
  ASSIGN_OR_RETURN(const CheckpointInfo info, InfoOf(model, config));
  ImportedModel imported;
  imported.step = info.step;
  for (const ImportedParam& param : params) {
    imported.values += param.shape.size();
    imported.tensors.push_back(param.name);
    if (param.from.empty()) imported.zeros.push_back(param.name);
  }
  ASSIGN_OR_RETURN(imported.bytes, ImportParams(model, params, info, to, scan));
  return imported;
}

}  // namespace lt2
