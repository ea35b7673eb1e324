#include "data/prefetch.h"

#include <chrono>
#include <utility>

#include "core/check.h"
#include "core/strings.h"

namespace lt2 {

Prefetcher::Prefetcher(ReadJob read, int64_t first, int64_t end, int depth)
    : read_(std::move(read)), slots_(depth), ready_(first), taken_(first), end_(end) {
  CHECK_GE(depth, 1);
  thread_ = std::thread([this, first, end] { Run(first, end); });
}

Prefetcher::Prefetcher(const Loader* loader, Schedule schedule, int64_t first, int64_t end,
                       int depth)
    : Prefetcher(
          [loader, schedule = std::move(schedule), samples = std::vector<int64_t>()](
              int64_t job, Batch* batch) mutable {
            samples.clear();
            schedule(job, &samples);
            return loader->Read(samples, batch);
          },
          first, end, depth) {}

Prefetcher::~Prefetcher() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Prefetcher::Run(int64_t first, int64_t end) {
  const int64_t depth = static_cast<int64_t>(slots_.size());
  for (int64_t job = first; job < end; ++job) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || job - taken_ < depth; });
      if (stop_) return;
    }
    // Nobody else touches this slot until ready_ has passed it.
    Slot& slot = slots_[job % depth];
    slot.status = read_(job, &slot.batch);
    const bool failed = !slot.status.ok();
    {
      std::lock_guard lock(mutex_);
      ready_ = job + 1;
    }
    changed_.notify_all();
    if (failed) return;
  }
}

absl::Status Prefetcher::Next(Batch* batch) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  std::unique_lock lock(mutex_);
  if (taken_ >= end_) {
    return absl::OutOfRangeError(StrCat("the schedule ends with job ", end_ - 1));
  }
  changed_.wait(lock, [&] { return ready_ > taken_; });
  wait_seconds_ += std::chrono::duration<double>(Clock::now() - start).count();
  Slot& slot = slots_[taken_ % static_cast<int64_t>(slots_.size())];
  if (!slot.status.ok()) return slot.status;  // not taken: the next call finds it again
  std::swap(*batch, slot.batch);
  ++taken_;
  lock.unlock();
  changed_.notify_all();
  return absl::OkStatus();
}

}  // namespace lt2
