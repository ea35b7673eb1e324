#include "parallel/flight_recorder.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "core/strings.h"
#include "core/trace.h"

namespace lt2 {

uint64_t FlightRecorder::Issue(const std::string& communicator, const char* op, const char* label,
                               int64_t bytes) {
  const double now = MonotonicSeconds();
  std::lock_guard lock(mutex_);
  auto last = std::find_if(sequences_.begin(), sequences_.end(),
                           [&](const auto& entry) { return entry.first == communicator; });
  if (last == sequences_.end()) last = sequences_.insert(last, {communicator, 0});
  const uint64_t id = next_++;
  ring_[id % ring_.size()] = {.id = id,
                              .sequence = ++last->second,
                              .communicator = communicator,
                              .op = op,
                              .label = label,
                              .bytes = bytes,
                              .place = CurrentPlace(),
                              .issued = now};
  return id;
}

FlightRecord* FlightRecorder::Find(uint64_t id) {
  FlightRecord& record = ring_[id % ring_.size()];
  return record.id == id ? &record : nullptr;  // overwritten since
}

void FlightRecorder::Start(uint64_t id) {
  const double now = MonotonicSeconds();
  std::lock_guard lock(mutex_);
  if (FlightRecord* record = Find(id)) record->started = now;
}

void FlightRecorder::End(uint64_t id) {
  const double now = MonotonicSeconds();
  std::lock_guard lock(mutex_);
  if (FlightRecord* record = Find(id)) record->ended = now;
}

std::vector<FlightRecord> FlightRecorder::Records() const {
  std::lock_guard lock(mutex_);
  std::vector<FlightRecord> records;
  const uint64_t first = next_ > ring_.size() ? next_ - ring_.size() : 1;
  for (uint64_t id = first; id < next_; ++id) records.push_back(ring_[id % ring_.size()]);
  return records;
}

std::optional<FlightRecord> FlightRecorder::OldestUnfinished() const {
  for (FlightRecord& record : Records()) {
    if (record.ended == 0) return std::move(record);
  }
  return std::nullopt;
}

std::string FlightRecorder::Describe(const FlightRecord& record) {
  const std::string place = record.place.ToString();
  return StrCat(record.label, " #", record.sequence, " (", record.op, ") on ", record.communicator,
                place.empty() ? "" : ", ", place);
}

std::string FlightRecorder::ToText(size_t count) const {
  const double now = MonotonicSeconds();
  std::vector<FlightRecord> records = Records();
  const size_t first = records.size() > count ? records.size() - count : 0;
  std::string text;
  for (size_t i = first; i < records.size(); ++i) {
    const FlightRecord& record = records[i];
    const char* state = record.ended > 0 ? "done" : record.started > 0 ? "under way" : "waiting";
    absl::StrAppendFormat(&text, "%s, %d bytes: %s, issued %.3f s ago", Describe(record),
                          record.bytes, state, now - record.issued);
    if (record.ended > 0)
      absl::StrAppendFormat(&text, ", took %.3f s", record.ended - record.issued);
    text += "\n";
  }
  return text;
}

}  // namespace lt2
