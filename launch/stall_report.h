// When nothing moves: what each rank says of itself, and who keeps the others waiting.
//
// Ranks that hang cannot be asked by a collective, so they leave their words as files in a folder
// that all see.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "parallel/flight_recorder.h"

namespace lt2 {

struct RankState {
  int rank = 0;
  std::string host;
  std::string phase;  // of the step
  std::string place;  // Place::ToString
  double silent = 0;  // seconds without progress
  // The collective that it waits for: "" for none.
  std::string waits_for;
  std::string recent;  // FlightRecorder::ToText
};

class StallReport {
 public:
  // Removes what an earlier run left of this rank. An empty folder: nobody else can be heard.
  StallReport(const std::string& folder, int rank, int ranks);
  bool shared() const { return !folder_.empty(); }
  absl::Status Write(const RankState& mine) const;
  // Of all ranks that have written, by rank.
  std::vector<RankState> Read() const;

 private:
  std::string PathOf(int rank) const;

  const std::string folder_;
  const int ranks_;
};

// Names the ranks of `ranks` that say nothing, else those that wait for nobody, else what each
// waits for: some lines for people.
std::string Verdict(std::span<const RankState> states, int ranks);

}  // namespace lt2
