#include "launch/metrics.h"

#include <chrono>
#include <ctime>
#include <functional>
#include <vector>

#include "absl/strings/str_format.h"
#include "core/file.h"
#include "core/status_macros.h"
#include "core/strings.h"

namespace lt2 {
namespace {

constexpr char kMetrics[] = "metrics.jsonl", kEvents[] = "events.jsonl";

absl::Status AppendLine(const std::string& run_dir, const char* file, const JsonLine& line) {
  // Text that is not UTF-8 (a path in an error) must not cost the line.
  const std::string text = line.dump(-1, ' ', false, JsonLine::error_handler_t::replace);
  return FileSystem::Get().AppendFile(JoinPath(run_dir, file), text + "\n");
}

absl::Status EndTornLine(const std::string& path) {
  FileSystem& files = FileSystem::Get();
  if (!files.Exists(path)) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string text, files.ReadFile(path));
  if (text.empty() || text.ends_with('\n')) return absl::OkStatus();
  return files.AppendFile(path, "\n");
}

std::string UtcNow() {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const int64_t milliseconds =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  return absl::StrFormat("%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", utc.tm_year + 1900, utc.tm_mon + 1,
                         utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec, milliseconds);
}

// Calls use(object) for every line that is a JSON object; returns how many are not.
absl::StatusOr<int64_t> ForEachLine(const std::string& path,
                                    const std::function<bool(JsonLine&&)>& use) {
  ASSIGN_OR_RETURN(const std::string text, FileSystem::Get().ReadFile(path));
  int64_t unreadable = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line(text.data() + begin, end - begin);
    begin = end + 1;
    if (line.empty()) continue;
    JsonLine json = JsonLine::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !use(std::move(json))) ++unreadable;
  }
  return unreadable;
}

}  // namespace

void StepMetrics::SetSpeed(int64_t tokens_of_step, int ranks, double model_flops_per_token) {
  tokens_per_s = static_cast<double>(tokens_of_step) / step_s;
  tokens_per_s_per_gpu = tokens_per_s / ranks;
  model_tflops_per_gpu = tokens_per_s_per_gpu * model_flops_per_token / 1e12;
}

JsonLine ToJson(const StepMetrics& metrics) {
  JsonLine line = {{"step", metrics.step},
                   {"tokens", metrics.tokens},
                   {"epoch", metrics.epoch},
                   {"loss", metrics.loss},
                   {"lr", metrics.lr},
                   {"grad_norm", metrics.grad_norm},
                   {"step_s", metrics.step_s},
                   {"data_wait_s", metrics.data_wait_s},
                   {"tokens_per_s", metrics.tokens_per_s},
                   {"tokens_per_s_per_gpu", metrics.tokens_per_s_per_gpu},
                   {"model_tflops_per_gpu", metrics.model_tflops_per_gpu},
                   {"mfu", metrics.mfu ? JsonLine(*metrics.mfu) : JsonLine(nullptr)},
                   {"peak_bytes", metrics.peak_bytes}};
  line.update(metrics.more);
  return line;
}

absl::StatusOr<MetricsWriter> MetricsWriter::Open(const std::string& run_dir) {
  RETURN_IF_ERROR(EndTornLine(JoinPath(run_dir, kMetrics)));
  RETURN_IF_ERROR(EndTornLine(JoinPath(run_dir, kEvents)));
  return MetricsWriter(run_dir);
}

absl::Status MetricsWriter::Step(const StepMetrics& metrics) {
  return AppendLine(run_dir_, kMetrics, ToJson(metrics));
}

absl::Status MetricsWriter::Valid(int64_t step, double valid_loss, const JsonLine& more) {
  JsonLine line = {{"step", step}, {"valid_loss", valid_loss}};
  line.update(more);
  return AppendLine(run_dir_, kMetrics, line);
}

absl::Status MetricsWriter::Event(std::string_view event, const JsonLine& fields) {
  JsonLine line = {{"time", UtcNow()}, {"event", event}};
  line.update(fields);
  return AppendLine(run_dir_, kEvents, line);
}

absl::StatusOr<MetricsHistory> ReadMetrics(const std::string& run_dir) {
  MetricsHistory history;
  const auto add = [&](JsonLine&& line) {
    if (!line.contains("step") || !line["step"].is_number_integer()) return false;
    const int64_t step = line["step"];
    if (line.contains("valid_loss")) {
      history.valid[step] = std::move(line);
      return true;
    }
    history.steps.erase(history.steps.lower_bound(step), history.steps.end());
    history.valid.erase(history.valid.lower_bound(step), history.valid.end());
    history.steps[step] = std::move(line);
    return true;
  };
  ASSIGN_OR_RETURN(history.unreadable, ForEachLine(JoinPath(run_dir, kMetrics), add));
  return history;
}

absl::StatusOr<std::vector<JsonLine>> ReadEvents(const std::string& run_dir) {
  std::vector<JsonLine> events;
  const auto add = [&](JsonLine&& line) {
    events.push_back(std::move(line));
    return true;
  };
  RETURN_IF_ERROR(ForEachLine(JoinPath(run_dir, kEvents), add).status());
  return events;
}

}  // namespace lt2
