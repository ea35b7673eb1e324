// Named time ranges, kept in a ring per process: what ran when, on which thread.
//
//   { TraceRange range("backward"); … }
//
// Off until EnableTrace; then about 50 ns a range.
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

class TraceRange {
 public:
  explicit TraceRange(const char* name);
  ~TraceRange();
  TraceRange(const TraceRange&) = delete;
  TraceRange& operator=(const TraceRange&) = delete;

 private:
  const char* name_;
  double begin_;
};

}  // namespace lt2
