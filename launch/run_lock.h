// The lock of a run directory: one holder at a time, over processes, hosts and jobs.
//
// lock/epoch-N.json names the N-th holder (host, pid, job); creating it exclusively is what takes
// the lock, so that of two contenders one wins on any file system. The holder touches it every few
// seconds. It is taken over when released, when its process is dead (seen on the same machine at
// once), or when it fell silent. Whoever was overtaken finds a higher epoch and publishes nothing.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lt2 {

struct LockOptions {
  double heartbeat_seconds = 3;  // between touches
  double silence_seconds = 10;   // without a touch a holder counts as dead; several heartbeats
  double wait_seconds = 15;      // for a living holder, before giving up
};

class RunLock {
 public:
  // Blocks at most wait_seconds. FailedPrecondition naming host, pid and job if another holds it.
  static absl::StatusOr<std::unique_ptr<RunLock>> Acquire(const std::string& run_dir,
                                                          const LockOptions& options = {});
  RunLock(const RunLock&) = delete;
  ~RunLock();  // marks the lock released if it is still held

  // Rises with every holder; the first is 1.
  int64_t epoch() const { return epoch_; }
  // OK while nobody overtook this holder, else Aborted naming who did. Asked before publishing.
  absl::Status StillHeld() const;

 private:
  RunLock(std::string folder, int64_t epoch, double heartbeat_seconds);
  void Beat(double seconds);

  const std::string folder_;
  const int64_t epoch_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool ending_ = false;
  std::thread heart_;
};

}  // namespace lt2
