#include "launch/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/check.h"

namespace lt2 {
namespace {

const std::vector<std::string> kKinds = {"cosine", "wsd", "linear", "constant"};

}  // namespace

ScheduleConfig ScheduleConfig::Read(const ConfigTable& table) {
  using Unit = Quantity::Unit;
  const std::vector<Unit> work = {Unit::kSteps, Unit::kTokens};
  ScheduleConfig config;
  config.kind = static_cast<ScheduleConfig::Kind>(table.ReadChoice("kind", kKinds, 0));
  ReadQuantity(table, "warmup", Unit::kTokens, work, &config.warmup);
  ReadQuantity(table, "total", Unit::kTokens, work, &config.total);
  ReadQuantity(table, "decay", Unit::kTokens, work, &config.decay);
  table.Read("min_ratio", &config.min_ratio);
  if (!table.Has("total")) {
    table.AddError("total", "is required, such as \"1000 steps\" or \"2e9 tokens\"");
  } else if (config.total.value == 0) {
    table.AddError("total", "must be above 0");
  }
  if (!(config.min_ratio >= 0 && config.min_ratio <= 1)) {
    table.AddError("min_ratio", "must be from 0 to 1: the share of lr that is left at the end");
  }
  if (table.Has("decay") && config.kind != ScheduleConfig::Kind::kWsd) {
    table.AddError("decay", "only kind = \"wsd\" has a decay of its own; remove it");
  }
  return config;
}

void ScheduleConfig::Write(ConfigTable* table) const {
  table->Set("kind", std::string_view(kKinds[static_cast<int>(kind)]));
  table->Set("warmup", std::string_view(warmup.ToString()));
  table->Set("total", std::string_view(total.ToString()));
  if (kind == ScheduleConfig::Kind::kWsd) {
    table->Set("decay", std::string_view(decay.ToString()));
  }
  table->Set("min_ratio", min_ratio);
}

Schedule::Schedule(const ScheduleConfig& config, double peak, int64_t tokens_per_step)
    : kind_(config.kind),
      peak_(peak),
      min_ratio_(config.min_ratio),
      warmup_(config.warmup.Tokens(tokens_per_step)),
      total_(config.total.Tokens(tokens_per_step)),
      decay_(config.decay.Tokens(tokens_per_step)) {
  if (decay_ == 0) decay_ = total_ / 10;
  decay_ = std::clamp<int64_t>(decay_, 1, std::max<int64_t>(1, total_ - warmup_));
}

double Schedule::LearningRate(int64_t tokens) const {
  if (tokens < warmup_) {
    return peak_ * static_cast<double>(tokens) / static_cast<double>(warmup_);
  }
  const auto share = [](int64_t part, int64_t whole) {
    return whole > 0 ? std::clamp(static_cast<double>(part) / static_cast<double>(whole), 0.0, 1.0)
                     : 1.0;
  };
  const double fall = 1 - min_ratio_;
  switch (kind_) {
    case ScheduleConfig::Kind::kConstant:
      return peak_;
    case ScheduleConfig::Kind::kLinear:
      return peak_ * (1 - fall * share(tokens - warmup_, total_ - warmup_));
    case ScheduleConfig::Kind::kWsd:
      return peak_ * (1 - fall * share(tokens - (total_ - decay_), decay_));
    case ScheduleConfig::Kind::kCosine: {
      const double p = share(tokens - warmup_, total_ - warmup_);
      return peak_ * (min_ratio_ + fall * 0.5 * (1 + std::cos(std::numbers::pi * p)));
    }
  }
  CHECK(false) << "schedule kind " << static_cast<int>(kind_);
}

}  // namespace lt2
