// The learning rate as a pure function of the tokens consumed.
//
// The update that consumes the tokens (t0, t1] uses the rate at t1, so the first one is above zero
// and the last one, at t1 = total, is peak · min_ratio. Behind `total` the rate stays there.
#pragma once

#include <cstdint>

#include "core/config.h"
#include "core/quantity.h"

namespace lt2 {

// [schedule]
struct ScheduleConfig {
  enum class Kind : uint8_t { kCosine, kWsd, kLinear, kConstant };
  Kind kind = Kind::kCosine;
  Quantity warmup{.value = 0, .unit = Quantity::Unit::kSteps};
  Quantity total{.value = 0, .unit = Quantity::Unit::kSteps};  // required
  // wsd: the length of the final decay; 0: a tenth of total.
  Quantity decay{.value = 0, .unit = Quantity::Unit::kSteps};
  double min_ratio = 0.1;  // of the peak, at the end

  // Every mistake is noted on the table.
  static ScheduleConfig Read(const ConfigTable& table);
  // Every key, resolved.
  void Write(ConfigTable* table) const;
};

class Schedule {
 public:
  Schedule(const ScheduleConfig& config, double peak, int64_t tokens_per_step);

  // warmup: peak · t / warmup. Then, with p from 0 at warmup to 1 at total:
  //   cosine    min + (1 − min) · (1 + cos πp) / 2
  //   linear    1 − (1 − min) · p
  //   constant  1
  //   wsd       1 until total − decay, then a straight line to min at total
  double LearningRate(int64_t tokens) const;
  int64_t total_tokens() const { return total_; }

 private:
  ScheduleConfig::Kind kind_;
  double peak_, min_ratio_;
  int64_t warmup_, total_, decay_;
};

}  // namespace lt2
