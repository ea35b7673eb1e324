#include "launch/deadline.h"

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "core/strings.h"
#include "core/trace.h"

namespace lt2 {
namespace {

// "2026-11-30T14:05:00" as squeue prints it, in local time; nothing if it is anything else.
std::optional<double> ParseLocalTime(const char* text) {
  std::tm at{};
  const char* const end = strptime(text, "%Y-%m-%dT%H:%M:%S", &at);
  if (end == nullptr) return std::nullopt;
  at.tm_isdst = -1;
  return static_cast<double>(std::mktime(&at));
}

std::optional<double> AskSqueue(const std::string& job) {
  int64_t number = 0;
  if (!absl::SimpleAtoi(job, &number)) return std::nullopt;
  const std::string command =
      StrCat("timeout 10 squeue --noheader --jobs=", number, " --format=%e 2>/dev/null");
  const std::unique_ptr<FILE, int (*)(FILE*)> answer(popen(command.c_str(), "r"), pclose);
  char line[64];
  if (!answer || std::fgets(line, sizeof line, answer.get()) == nullptr) return std::nullopt;
  return ParseLocalTime(line);
}

// In seconds since 1970.
std::optional<double> EndOfJob() {
  const char* const end = std::getenv("SLURM_JOB_END_TIME");
  double seconds = 0;
  if (end != nullptr && absl::SimpleAtod(end, &seconds)) return seconds;
  const char* const job = std::getenv("SLURM_JOB_ID");
  return job == nullptr ? std::nullopt : AskSqueue(job);
}

}  // namespace

Deadline::Deadline(double max_minutes) {
  const double now = MonotonicSeconds();
  if (max_minutes > 0) NotAfter(now + 60 * max_minutes, "--max-minutes");
  if (const std::optional<double> end = EndOfJob()) {
    NotAfter(now + *end - static_cast<double>(std::time(nullptr)), "the end of the SLURM job");
  }
}

void Deadline::NotAfter(double end, const char* reason) {
  if (end_ && *end_ <= end) return;
  end_ = end;
  reason_ = reason;
}

bool Deadline::Near(double step_seconds, double save_seconds) const {
  return end_ && MonotonicSeconds() + 2 * step_seconds + 1.5 * save_seconds > *end_;
}

std::string Deadline::ToString() const {
  if (!end_) return "";
  return absl::StrFormat("in %.1f min, %s", (*end_ - MonotonicSeconds()) / 60, reason_);
}

}  // namespace lt2
