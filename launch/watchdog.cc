#include "launch/watchdog.h"

#include <chrono>

#include "absl/strings/str_format.h"
#include "core/log.h"
#include "core/trace.h"

namespace lt2 {

Watchdog::Watchdog(Communicator& world, double first_step_limit, double stall_limit)
    : world_(world),
      stall_limit_(stall_limit),
      limit_(first_step_limit),
      since_(MonotonicSeconds()),
      thread_([this, log = CurrentLogIdentity()] {
        SetLogIdentity(log);
        Watch();
      }) {}

Watchdog::~Watchdog() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  ended_.notify_all();
  thread_.join();
}

void Watchdog::Progress(const char* phase) {
  std::lock_guard lock(mutex_);
  phase_ = phase;
  since_ = MonotonicSeconds();
}

void Watchdog::StepDone() {
  std::lock_guard lock(mutex_);
  limit_ = stall_limit_;
  since_ = MonotonicSeconds();
}

void Watchdog::Watch() {
  std::unique_lock lock(mutex_);
  while (!ended_.wait_for(lock, std::chrono::milliseconds(200), [this] { return ending_; })) {
    const double silent = MonotonicSeconds() - since_;
    if (limit_ <= 0 || silent < limit_) continue;
    const std::optional<FlightRecord> waiting = world_.recorder().OldestUnfinished();
    LogError(
        absl::StrFormat("no progress for %.1f s in phase \"%s\" (run.stall_limit, "
                        "run.first_step_limit)%s; the last "
                        "collectives of this rank:\n%s",
                        silent, phase_,
                        waiting ? absl::StrFormat(", waiting for %s #%d on %s", waiting->label,
                                                  waiting->sequence, waiting->communicator)
                                : "",
                        world_.recorder().ToText(8)));
    world_.Abort(1);
  }
}

}  // namespace lt2
