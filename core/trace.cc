#include "core/trace.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <thread>

#include "core/log.h"

#ifdef LT2_HAS_CUDA
#include <nvtx3/nvToolsExt.h>
#endif

namespace lt2 {
namespace {

constexpr size_t kCapacity = 65536;
std::atomic<bool> enabled = false;
std::mutex mutex;
std::vector<TraceEvent> ring;  // guarded by mutex
size_t next_event = 0;         // guarded by mutex: where the ring goes on once it is full

}  // namespace

double MonotonicSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void EnableTrace(bool on) {
  std::lock_guard lock(mutex);
  ring.clear();
  next_event = 0;
  enabled = on;
}

std::vector<TraceEvent> TraceEvents() {
  std::lock_guard lock(mutex);
  std::vector<TraceEvent> events(ring.begin() + static_cast<ptrdiff_t>(next_event), ring.end());
  events.insert(events.end(), ring.begin(), ring.begin() + static_cast<ptrdiff_t>(next_event));
  return events;
}

#ifdef LT2_HAS_CUDA
ProfilerRange::ProfilerRange(const char* name) { nvtxRangePushA(name); }
ProfilerRange::~ProfilerRange() { nvtxRangePop(); }
#else
ProfilerRange::ProfilerRange(const char*) {}
ProfilerRange::~ProfilerRange() = default;
#endif

TraceRange::TraceRange(const char* name)
    : profiled_(name), name_(name), begin_(enabled ? MonotonicSeconds() : 0) {}

TraceRange::~TraceRange() {
  if (!enabled || begin_ == 0) return;
  const TraceEvent event{name_, std::hash<std::thread::id>()(std::this_thread::get_id()), LogRank(),
                         begin_, MonotonicSeconds()};
  std::lock_guard lock(mutex);
  if (ring.size() < kCapacity) {
    ring.push_back(event);
  } else {
    ring[next_event] = event;
    next_event = (next_event + 1) % kCapacity;
  }
}

}  // namespace lt2
