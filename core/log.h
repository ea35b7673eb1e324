// Messages to people: rank 0 speaks on standard error, other ranks only warn.
//
// LT2_LOG=debug|info|warn chooses what is shown. Ranks may be threads of one process, so the rank
// is the thread's own.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace lt2 {

enum class LogLevel { kDebug, kInfo, kWarn, kError };

// Told once per rank (by the thread that runs it); before that a process counts as rank 0 of 1.
void SetLogRank(int rank, int size, std::string_view host);
int LogRank();
// "" for a single rank, else "rank R (host): ".
std::string RankPrefix();

// Debug and info lines appear on rank 0 only; warnings and errors on every rank, with its name.
void Log(LogLevel level, std::string_view message);
inline void LogDebug(std::string_view message) { Log(LogLevel::kDebug, message); }
inline void LogInfo(std::string_view message) { Log(LogLevel::kInfo, message); }
inline void LogWarn(std::string_view message) { Log(LogLevel::kWarn, message); }
inline void LogError(std::string_view message) { Log(LogLevel::kError, message); }

// Who speaks on a thread. A rank's helper threads take over their maker's:
//   std::thread([log = CurrentLogIdentity()] { SetLogIdentity(log); … });
struct LogIdentity {
  int rank = 0, size = 1;
  std::string host;
  std::function<void(LogLevel, std::string_view)> sink;
};
const LogIdentity& CurrentLogIdentity();
void SetLogIdentity(LogIdentity identity);

// Copies every line that passes this thread's filter to `sink` as well (the run directory's log);
// an empty function ends it.
void SetLogSink(std::function<void(LogLevel, std::string_view)> sink);

}  // namespace lt2
