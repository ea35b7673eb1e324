#include "launch/run_lock.h"

#include <algorithm>
#include <chrono>

#include "core/file.h"
#include "core/log.h"
#include "core/status_macros.h"
#include "core/strings.h"
#include "core/trace.h"
#include "launch/lock_file.h"

namespace lt2 {
namespace {

void Sleep(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

// What a contender has seen of the present holder. Only changes of its heartbeat count, on the
// contender's own clock, so that clocks of different hosts need not agree.
class Watch {
 public:
  explicit Watch(std::string folder) : folder_(std::move(folder)) {}

  // The epoch to claim if the lock is free, or 0 while its holder seems alive.
  absl::StatusOr<int64_t> FreeEpoch(double silence_seconds) {
    ASSIGN_OR_RETURN(const int64_t epoch, HighestEpoch(folder_));
    if (epoch == 0) return 1;
    const std::string path = LockFilePath(folder_, epoch);
    absl::StatusOr<LockHolder> holder = ReadLockFile(path);
    if (absl::IsNotFound(holder.status())) return 0;  // overtaken since: look again
    if (holder.ok()) {
      holder_ = *std::move(holder);
      if (holder_.released || holder_.KnownDead()) return epoch + 1;
    } else if (!absl::IsDataLoss(holder.status())) {
      return holder.status();
    }
    const std::optional<int64_t> beat = HeartbeatOf(path);
    const double now = MonotonicSeconds();
    if (epoch != epoch_ || beat != beat_) {
      epoch_ = epoch;
      beat_ = beat;
      changed_ = now;
    }
    return now - changed_ >= silence_seconds ? epoch + 1 : 0;
  }
  const LockHolder& holder() const { return holder_; }

 private:
  std::string folder_;
  LockHolder holder_;
  int64_t epoch_ = 0;
  std::optional<int64_t> beat_;
  double changed_ = 0;
};

// True if this process now holds `epoch`: it created the file, and nobody was ahead of it.
absl::StatusOr<bool> Claim(const std::string& folder, int64_t epoch) {
  const std::string path = LockFilePath(folder, epoch);
  const absl::Status created = CreateLockFile(path, LockHolder::ThisProcess(epoch));
  if (absl::IsAlreadyExists(created)) return false;
  RETURN_IF_ERROR(created);
  ASSIGN_OR_RETURN(const int64_t highest, HighestEpoch(folder));
  if (highest == epoch) return true;
  RETURN_IF_ERROR(FileSystem::Get().RemoveAll(path));
  return false;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RunLock>> RunLock::Acquire(const std::string& run_dir,
                                                          const LockOptions& options) {
  const std::string folder = JoinPath(run_dir, "lock");
  RETURN_IF_ERROR(FileSystem::Get().MakeDirectories(folder));
  Watch watch(folder);
  const double deadline = MonotonicSeconds() + options.wait_seconds;
  bool told = false;
  while (true) {
    ASSIGN_OR_RETURN(const int64_t epoch, watch.FreeEpoch(options.silence_seconds));
    if (epoch > 0) {
      ASSIGN_OR_RETURN(const bool claimed, Claim(folder, epoch));
      if (claimed) {
        RemoveEpochsBefore(folder, epoch);
        return std::unique_ptr<RunLock>(new RunLock(folder, epoch, options.heartbeat_seconds));
      }
    }
    if (MonotonicSeconds() >= deadline) {
      return absl::FailedPreconditionError(StrCat(run_dir, ": the run is in use by ",
                                                  watch.holder().ToString(),
                                                  "; stop it, or choose another --run-dir"));
    }
    if (!told && epoch == 0) {
      LogInfo(StrCat(run_dir, " is in use by ", watch.holder().ToString(), "; waiting up to ",
                     options.wait_seconds, " s"));
      told = true;
    }
    Sleep(std::clamp(options.heartbeat_seconds / 10, 0.005, 0.25));
  }
}

RunLock::RunLock(std::string folder, int64_t epoch, double heartbeat_seconds)
    : folder_(std::move(folder)),
      epoch_(epoch),
      heart_([this, heartbeat_seconds] { Beat(heartbeat_seconds); }) {}

RunLock::~RunLock() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  ended_.notify_all();
  heart_.join();
  if (StillHeld().ok()) MarkReleased(LockFilePath(folder_, epoch_)).IgnoreError();
}

void RunLock::Beat(double seconds) {
  std::unique_lock lock(mutex_);
  while (!ended_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return ending_; })) {
    if (!TouchLockFile(LockFilePath(folder_, epoch_))) return;  // overtaken; StillHeld says so
  }
}

absl::Status RunLock::StillHeld() const {
  ASSIGN_OR_RETURN(const int64_t highest, HighestEpoch(folder_));
  if (highest == epoch_) return absl::OkStatus();
  const absl::StatusOr<LockHolder> other = ReadLockFile(LockFilePath(folder_, highest));
  return absl::AbortedError(StrCat(folder_, ": this process lost the run to ",
                                   other.ok() ? other->ToString() : "another one",
                                   "; it saves nothing more"));
}

}  // namespace lt2
