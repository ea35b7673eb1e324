// metrics.jsonl and events.jsonl of a run directory: one JSON object a line, appended.
//
// Numbers are printed with the fewest digits that read back to the same bits, so that equal text
// means equal bits. What is not finite (a diverged loss) is null, as JSON knows no NaN; the event
// that goes with it says more. Every line reaches the kernel before the call returns.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lt2 {

using JsonLine = nlohmann::ordered_json;  // keys in the order in which they were set

// One finished update. Losses in nats, times in seconds.
struct StepMetrics {
  int64_t step = 0;    // finished updates; the first is 1
  int64_t tokens = 0;  // consumed so far
  double epoch = 0;    // passes over the training data so far
  double loss = 0;     // mean over all counted tokens of the global batch
  double lr = 0;
  double grad_norm = 0;  // before clipping
  double step_s = 0;
  double data_wait_s = 0;
  double tokens_per_s = 0;
  double tokens_per_s_per_gpu = 0;  // per rank on CPU
  double model_tflops_per_gpu = 0;
  std::optional<double> mfu;  // null on devices without a known peak
  int64_t peak_bytes = 0;
  JsonLine more = JsonLine::object();  // diagnostics, appended to the line

  // What follows from step_s and the tokens of the step.
  void SetSpeed(int64_t tokens_of_step, int ranks, double model_flops_per_token);
};
JsonLine ToJson(const StepMetrics& metrics);

class MetricsWriter {
 public:
  // Of an existing run directory. A line that a killed process left half written is ended first.
  static absl::StatusOr<MetricsWriter> Open(const std::string& run_dir);

  absl::Status Step(const StepMetrics& metrics);
  // {"step":…, "valid_loss":…} and what `more` adds.
  absl::Status Valid(int64_t step, double valid_loss, const JsonLine& more = JsonLine::object());
  // {"time":"2025-01-31T12:00:00.000Z", "event":…, …fields}. Events: start, resume, checkpoint,
  // skip, signal, end.
  absl::Status Event(std::string_view event, const JsonLine& fields = JsonLine::object());

 private:
  explicit MetricsWriter(std::string run_dir) : run_dir_(std::move(run_dir)) {}
  std::string run_dir_;
};

// What counts of a metrics.jsonl that restarts have appended to: the last line of each step. A step
// at or before one already read means that the run went back; what lay behind it is dropped.
struct MetricsHistory {
  std::map<int64_t, JsonLine> steps;  // by step
  std::map<int64_t, JsonLine> valid;  // by step
  int64_t unreadable = 0;             // lines that are no JSON object with a step
};
absl::StatusOr<MetricsHistory> ReadMetrics(const std::string& run_dir);
// The events in order; unreadable lines are left out.
absl::StatusOr<std::vector<JsonLine>> ReadEvents(const std::string& run_dir);

}  // namespace lt2
