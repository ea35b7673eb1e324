#include "data/data_config.h"

#include <cmath>

#include "core/config_range.h"
#include "core/strings.h"
#include "data/tokenizer.h"

namespace lt2 {
namespace {

constexpr int64_t kLongestSequence = int64_t{1} << 26;
const std::vector<std::string> kDocumentModes = {"reset", "ignore"};

}  // namespace

void ReadDataConfig(const ConfigTable& data, DataConfig* config) {
  const std::vector<ConfigTable> tables = data.Tables("train");
  if (!tables.empty()) config->train.clear();
  for (const ConfigTable& table : tables) {
    DataConfig::Train train;
    table.Read("path", &train.path);
    table.Read("weight", &train.weight);
    if (train.path.empty()) {
      table.AddError("path", "is missing: a folder of token shards or a text file");
    }
    if (!std::isfinite(train.weight) || train.weight <= 0) {
      table.AddError("weight", StrCat("is ", train.weight, "; it must be positive"));
    }
    config->train.push_back(train);
  }
  if (config->train.empty()) {
    data.AddError("train",
                  "is missing: at least one source, as in train = [{path = \"text.txt\"}]");
  }
  if (data.Has("valid")) {
    config->valid.emplace();
    data.Read("valid", &*config->valid);
  }
  ReadInRange(data, "sequence", 1, kLongestSequence, &config->sequence);
  data.Read("tokenizer", &config->tokenizer);
  if (const auto tokenizer = MakeTokenizer(config->tokenizer); !tokenizer.ok()) {
    data.AddError("tokenizer", std::string(tokenizer.status().message()));
  }
  config->documents = static_cast<DocumentMode>(
      data.ReadChoice("documents", kDocumentModes, static_cast<int>(config->documents)));
}

void WriteDataConfig(const DataConfig& config, ConfigTable* data) {
  std::vector<ConfigTable> tables;
  for (const DataConfig::Train& train : config.train) {
    ConfigTable table;
    table.Set("path", std::string_view(train.path));
    table.Set("weight", train.weight);
    tables.push_back(table);
  }
  data->SetTables("train", tables);
  if (config.valid) data->Set("valid", std::string_view(*config.valid));
  data->Set("sequence", config.sequence);
  data->Set("tokenizer", std::string_view(config.tokenizer));
  data->Set("documents", std::string_view(kDocumentModes[static_cast<int>(config.documents)]));
}

}  // namespace lt2
