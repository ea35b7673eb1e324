// What a rank's last collectives were and how far each got: what a watchdog prints when all hangs.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/place.h"

namespace lt2 {

struct FlightRecord {
  uint64_t id = 0;        // counts a rank's collectives, over all its communicators
  uint64_t sequence = 0;  // counts those of `communicator`: equal numbers meet each other
  std::string communicator;
  const char* op = "";
  const char* label = "";
  int64_t bytes = 0;
  Place place;                                // where the rank was when it issued it
  double issued = 0, started = 0, ended = 0;  // MonotonicSeconds; 0: not yet
};

// A ring of the last `capacity` records; safe from any thread.
class FlightRecorder {
 public:
  explicit FlightRecorder(size_t capacity = 1024) : ring_(capacity) {}

  // Returns the id by which Start and End name it.
  uint64_t Issue(const std::string& communicator, const char* op, const char* label, int64_t bytes);
  void Start(uint64_t id);
  void End(uint64_t id);

  std::vector<FlightRecord> Records() const;  // oldest first
  // The earliest collective still in the ring that has not ended.
  std::optional<FlightRecord> OldestUnfinished() const;
  // "gather keys #17 (AllGather) on cp, layer 3 of loop 0, backward".
  static std::string Describe(const FlightRecord& record);
  // The last `count` records, one line each, for people.
  std::string ToText(size_t count) const;

 private:
  FlightRecord* Find(uint64_t id);

  mutable std::mutex mutex_;
  std::vector<FlightRecord> ring_;
  uint64_t next_ = 1;
  std::vector<std::pair<std::string, uint64_t>> sequences_;  // last one by communicator
};

}  // namespace lt2
