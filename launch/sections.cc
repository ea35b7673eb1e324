#include "launch/sections.h"

#include "core/config_range.h"
#include "core/strings.h"

namespace lt2 {
namespace {

using Unit = Quantity::Unit;

constexpr int64_t kMostTokens = int64_t{1} << 40;  // of one step
constexpr int64_t kMostSequences = int64_t{1} << 20;

void RequireAtLeast(const ConfigTable& table, std::string_view key, int64_t value, int64_t least) {
  if (value < least) table.AddError(key, StrCat("must be at least ", least, ", is ", value));
}

void ReadSeconds(const ConfigTable& table, std::string_view key, double* seconds) {
  Quantity quantity{.value = *seconds, .unit = Unit::kSeconds};
  ReadQuantity(table, key, Unit::kSeconds, {Unit::kSeconds}, &quantity);
  *seconds = quantity.value;
}

void SetQuantity(ConfigTable& table, std::string_view key, const Quantity& quantity) {
  table.Set(key, std::string_view(quantity.ToString()));
}

// A switch of the contract that this version knows but cannot turn on.
void RefuseOn(const ConfigTable& table, std::string_view key) {
  bool on = false;
  table.Read(key, &on);
  if (on) table.AddError(key, "is not supported by this version; set it to false or remove it");
}

}  // namespace

RunSection RunSection::Read(const ConfigTable& table, const std::string& default_name) {
  RunSection run;
  run.name = default_name;
  table.Read("name", &run.name);
  run.dir = StrCat("runs/", run.name);
  table.Read("dir", &run.dir);
  table.Read("seed", &run.seed);
  table.Read("deterministic", &run.deterministic);
  table.Read("graphs", &run.graphs);
  ReadSeconds(table, "stall_limit", &run.stall_limit);
  ReadSeconds(table, "first_step_limit", &run.first_step_limit);
  ReadQuantity(table, "replica_check", Unit::kSteps, {Unit::kSteps, Unit::kTokens},
               &run.replica_check);
  RequireAtLeast(table, "seed", run.seed, 0);
  if (run.name.empty() || run.name.find('/') != std::string::npos) {
    table.AddError("name", "must be a plain name without '/'");
  }
  if (run.dir.empty()) table.AddError("dir", "must not be empty");
  return run;
}

void RunSection::Write(ConfigTable* table) const {
  table->Set("name", std::string_view(name));
  table->Set("seed", seed);
  table->Set("dir", std::string_view(dir));
  table->Set("deterministic", deterministic);
  table->Set("graphs", graphs);
  table->Set("stall_limit", stall_limit);
  table->Set("first_step_limit", first_step_limit);
  SetQuantity(*table, "replica_check", replica_check);
}

BatchConfig BatchConfig::Read(const ConfigTable& table) {
  BatchConfig batch;
  table.Read("tokens", &batch.tokens);
  if (!table.Has("tokens")) {
    table.AddError("tokens", "is required: the tokens of one step over all ranks");
  } else {
    ReadInRange(table, "tokens", 1, kMostTokens, &batch.tokens);
  }
  ReadInRange(table, "micro_batch", 1, kMostSequences, &batch.micro_batch);
  return batch;
}

void BatchConfig::Write(ConfigTable* table) const {
  table->Set("tokens", tokens);
  table->Set("micro_batch", micro_batch);
}

CheckpointConfig CheckpointConfig::Read(const ConfigTable& table) {
  CheckpointConfig checkpoint;
  ReadQuantity(table, "every", Unit::kSteps, {Unit::kSteps, Unit::kTokens, Unit::kSeconds},
               &checkpoint.every);
  table.Read("keep_last", &checkpoint.keep_last);
  ReadQuantity(table, "keep_every", Unit::kSteps, {Unit::kSteps, Unit::kTokens},
               &checkpoint.keep_every);
  table.Read("async", &checkpoint.async);
  table.Read("verify_writes", &checkpoint.verify_writes);
  checkpoint.per_node = table.ReadChoice("files", {"rank", "node"}, 0) == 1;
  RequireAtLeast(table, "keep_last", checkpoint.keep_last, 1);
  return checkpoint;
}

void CheckpointConfig::Write(ConfigTable* table) const {
  SetQuantity(*table, "every", every);
  table->Set("keep_last", keep_last);
  SetQuantity(*table, "keep_every", keep_every);
  table->Set("async", async);
  table->Set("files", std::string_view(per_node ? "node" : "rank"));
  table->Set("verify_writes", verify_writes);
}

LogConfig LogConfig::Read(const ConfigTable& table) {
  LogConfig log;
  ReadQuantity(table, "every", Unit::kSteps, {Unit::kSteps, Unit::kTokens}, &log.every);
  ReadQuantity(table, "valid_every", Unit::kSteps, {Unit::kSteps, Unit::kTokens}, &log.valid_every);
  Quantity valid_tokens;
  ReadQuantity(table, "valid_tokens", Unit::kTokens, {Unit::kTokens}, &valid_tokens);
  log.valid_tokens = static_cast<int64_t>(valid_tokens.value);
  if (log.every.value == 0) table.AddError("every", "must be above 0");
  RefuseOn(table, "tensorboard");
  return log;
}

void LogConfig::Write(ConfigTable* table) const {
  SetQuantity(*table, "every", every);
  SetQuantity(*table, "valid_every", valid_every);
  table->Set("valid_tokens", valid_tokens);
}

}  // namespace lt2
