// What people and files are told of a run's progress: console lines with ETA, metrics, diagnostics.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "launch/metrics.h"
#include "model/looped_stack.h"

namespace lt2 {

// "step 120/700  245,760 tokens  loss 2.3411  lr 5.91e-03  norm 0.84  12,345 tok/s  ETA 1:02"
std::string ConsoleLine(const StepMetrics& metrics, int64_t last_step, double eta_seconds);
// "1:02", "2:03:04", "3 d 04:05"
std::string Duration(double seconds);
// 1234567 -> "1,234,567"
std::string WithCommas(int64_t number);

// Per-loop diagnostics as metric fields. The gradient norm is scaled to the mean loss over
// `counted` tokens of the micro-batch that was looked at.
JsonLine ToJson(const LoopDiagnostics& diagnostics, double counted);

// Where tokens leave, as metric fields: of the sums of the entropy and of p_1 … p_T over `counted`
// tokens.
JsonLine ExitsToJson(std::span<const double> sums, double counted);

// A moving average of step times, for the ETA and for deadlines.
class StepClock {
 public:
  void Add(double seconds) { average_ = count_++ == 0 ? seconds : 0.9 * average_ + 0.1 * seconds; }
  double average() const { return average_; }

 private:
  double average_ = 0;
  int64_t count_ = 0;
};

}  // namespace lt2
