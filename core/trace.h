// Named time ranges, kept in a ring per process: what ran when, on which thread.
//
//   { TraceRange range("backward"); … }
//
// Off until EnableTrace; then about 50 ns a range. In builds with CUDA a range is an NVTX range of
// the thread too, for Nsight's timelines.
#pragma once

#include <cstdint>
#include <vector>

namespace lt2 {

struct TraceEvent {
  const char* name;   // a literal
  uint64_t thread;    // distinguishes threads, nothing more
  int rank;           // LogRank() of the thread
  double begin, end;  // seconds on the monotonic clock
};

void EnableTrace(bool on);
// Everything recorded since EnableTrace(true), oldest first (the last 65,536).
std::vector<TraceEvent> TraceEvents();
double MonotonicSeconds();

// For the profiler's timeline alone: an operator's call, of which there are too many for the ring.
class ProfilerRange {
 public:
  explicit ProfilerRange(const char* name);
  ~ProfilerRange();
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;
};

class TraceRange {
 public:
  explicit TraceRange(const char* name);
  ~TraceRange();
  TraceRange(const TraceRange&) = delete;
  TraceRange& operator=(const TraceRange&) = delete;

 private:
  const ProfilerRange profiled_;
  const char* name_;
  double begin_;
};

}  // namespace lt2
