#include "core/log.h"

#include <cstdio>
#include <cstdlib>
#include <mutex>

namespace lt2 {
namespace {

thread_local LogIdentity identity;

LogLevel Threshold() {
  static const LogLevel level = [] {
    const char* text = std::getenv("LT2_LOG");
    std::string_view name = text ? text : "info";
    return name == "debug" ? LogLevel::kDebug : name == "warn" ? LogLevel::kWarn : LogLevel::kInfo;
  }();
  return level;
}

}  // namespace

void SetLogRank(int rank, int size, std::string_view host) {
  identity.rank = rank;
  identity.size = size;
  identity.host = host;
}

const LogIdentity& CurrentLogIdentity() { return identity; }

void SetLogIdentity(LogIdentity other) { identity = std::move(other); }

int LogRank() { return identity.rank; }

std::string RankPrefix() {
  if (identity.size <= 1) return "";
  return "rank " + std::to_string(identity.rank) + " (" + identity.host + "): ";
}

void Log(LogLevel level, std::string_view message) {
  if (level < Threshold()) return;
  const bool serious = level >= LogLevel::kWarn;
  if (identity.rank != 0 && !serious) return;
  std::string line = serious ? RankPrefix() : "";
  if (level == LogLevel::kWarn) line += "warning: ";
  if (level == LogLevel::kError) line += "error: ";
  line += message;
  if (identity.sink) identity.sink(level, line);
  line += "\n";
  static std::mutex mutex;  // whole lines, whichever thread speaks
  std::lock_guard lock(mutex);
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fflush(stderr);
}

void SetLogSink(std::function<void(LogLevel, std::string_view)> sink) {
  identity.sink = std::move(sink);
}

}  // namespace lt2
