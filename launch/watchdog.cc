#include "launch/watchdog.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_format.h"
#include "core/log.h"
#include "core/strings.h"
#include "core/trace.h"
#include "launch/signals.h"

namespace lt2 {
namespace {

constexpr auto kLook = std::chrono::milliseconds(100);
constexpr size_t kRecent = 8;
// Ranks notice a stall at about the same time: so long the first ones wait for the others' words.
constexpr double kMostGrace = 5;

void Sleep(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

}  // namespace

Watchdog::Watchdog(Communicator& world, double first_step_limit, double stall_limit,
                   const std::string& folder)
    : world_(world),
      stall_limit_(stall_limit),
      report_(folder, world.rank(), world.size()),
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

RankState Watchdog::State() const {
  const std::optional<FlightRecord> waiting = world_.recorder().OldestUnfinished();
  return {.rank = world_.rank(),
          .host = world_.host(),
          .phase = phase_,
          .place = place_.Get().ToString(),
          .silent = MonotonicSeconds() - since_,
          .waits_for = waiting ? FlightRecorder::Describe(*waiting) : "",
          .recent = world_.recorder().ToText(kRecent)};
}

void Watchdog::Watch() {
  std::unique_lock lock(mutex_);
  while (!ended_.wait_for(lock, kLook, [this] { return ending_; })) {
    TellWhatASignalMeets();
    if (limit_ > 0 && MonotonicSeconds() - since_ >= limit_) End();
  }
}

// A launcher whose rank died gives the others about a second between TERM and KILL.
void Watchdog::TellWhatASignalMeets() {
  if (PendingSignal() == 0 || signal_met_) return;
  const std::optional<FlightRecord> waiting = world_.recorder().OldestUnfinished();
  if (!waiting || MonotonicSeconds() - waiting->issued < 0.2) return;
  signal_met_ = true;
  LogWarn(StrCat(SignalName(PendingSignal()), " came while waiting for ",
                 FlightRecorder::Describe(*waiting), ", in \"", phase_, "\""));
}

void Watchdog::End() {
  const RankState mine = State();
  const absl::Status written = report_.Write(mine);
  const double grace = std::clamp(limit_ / 2, 0.5, kMostGrace);
  Sleep(grace);
  std::vector<RankState> states = report_.Read();
  const bool first = states.empty() || states[0].rank == world_.rank();
  if (!first) Sleep(grace);  // the first one speaks for all and ends them
  if (states.empty()) states = {mine};
  const int heard = static_cast<int>(states.size());
  LogError(absl::StrFormat(
      "no progress for %.1f s (run.stall_limit, run.first_step_limit)%s\n%sthe last collectives of "
      "this rank:\n%s",
      mine.silent, written.ok() ? "" : StrCat("; ", std::string(written.message())),
      Verdict(states, report_.shared() ? world_.size() : heard), mine.recent));
  world_.Abort(1);
}

}  // namespace lt2
