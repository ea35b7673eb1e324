// A holder of the run lock as its file describes it, and whether that process lives.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lt2 {

struct LockHolder {
  std::string host;
  std::string machine;  // boot and process namespace: whether pids can be compared
  int64_t pid = 0;
  int64_t started = 0;  // the process's start time in clock ticks: tells a reused pid
  std::string job;      // SLURM_JOB_ID, or ""
  int64_t epoch = 0;
  bool released = false;

  static LockHolder ThisProcess(int64_t epoch);
  // "pid 4711 on node3 (job 88)"
  std::string ToString() const;
  // True if it is known to be dead: it ran on this machine and is gone.
  bool KnownDead() const;
};

std::string LockFilePath(const std::string& folder, int64_t epoch);
// The highest epoch in the folder; 0 if there is none.
absl::StatusOr<int64_t> HighestEpoch(const std::string& folder);
// Removes what earlier holders and contenders left; failures do no harm.
void RemoveEpochsBefore(const std::string& folder, int64_t epoch);

// NotFound if it is gone, DataLoss if it does not (yet) hold what it should.
absl::StatusOr<LockHolder> ReadLockFile(const std::string& path);
// Creates the file with its content in one step; AlreadyExists if it is there.
absl::Status CreateLockFile(const std::string& path, const LockHolder& holder);
absl::Status MarkReleased(const std::string& path);
// Modification time in nanoseconds, as the file's server has it; nullopt if it is gone.
std::optional<int64_t> HeartbeatOf(const std::string& path);
// Sets the modification time to now; false if the file is gone.
bool TouchLockFile(const std::string& path);

}  // namespace lt2
