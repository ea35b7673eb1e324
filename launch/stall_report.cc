#include "launch/stall_report.h"

#include <map>

#include "absl/strings/str_format.h"
#include "core/file.h"
#include "core/strings.h"
#include "launch/metrics.h"

namespace lt2 {

StallReport::StallReport(const std::string& folder, int rank, int ranks)
    : folder_(folder), ranks_(ranks) {
  if (!folder_.empty()) (void)FileSystem::Get().RemoveAll(PathOf(rank));
}

std::string StallReport::PathOf(int rank) const {
  return JoinPath(folder_, StrCat("stall-rank-", rank, ".json"));
}

absl::Status StallReport::Write(const RankState& mine) const {
  if (folder_.empty()) return absl::OkStatus();
  const JsonLine json = {{"rank", mine.rank},         {"host", mine.host},
                         {"phase", mine.phase},       {"place", mine.place},
                         {"silent_s", mine.silent},   {"waits_for", mine.waits_for},
                         {"collectives", mine.recent}};
  return WriteFileAtomically(PathOf(mine.rank), json.dump() + "\n");
}

std::vector<RankState> StallReport::Read() const {
  std::vector<RankState> states;
  for (int rank = 0; !folder_.empty() && rank < ranks_; ++rank) {
    const absl::StatusOr<std::string> text = FileSystem::Get().ReadFile(PathOf(rank));
    if (!text.ok()) continue;
    const JsonLine json = JsonLine::parse(*text, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) continue;
    states.push_back({.rank = rank,
                      .host = json.value("host", ""),
                      .phase = json.value("phase", ""),
                      .place = json.value("place", ""),
                      .silent = json.value("silent_s", 0.0),
                      .waits_for = json.value("waits_for", ""),
                      .recent = json.value("collectives", "")});
  }
  return states;
}

namespace {

std::string Name(const RankState& state) {
  return StrCat("rank ", state.rank, " (", state.host, ")");
}

}  // namespace

std::string Verdict(std::span<const RankState> states, int ranks) {
  std::vector<bool> heard(ranks, false);
  std::map<std::string, std::vector<const RankState*>> waiting;
  std::string text;
  for (const RankState& state : states) {
    heard[state.rank] = true;
    if (!state.waits_for.empty()) {
      waiting[state.waits_for].push_back(&state);
      continue;
    }
    absl::StrAppendFormat(&text, "%s is behind: in \"%s\"%s%s for %.1f s, in no collective\n",
                          Name(state), state.phase, state.place.empty() ? "" : ", ", state.place,
                          state.silent);
  }
  for (int rank = 0; rank < ranks; ++rank) {
    if (!heard[rank]) StrAppend(&text, "rank ", rank, " says nothing: gone, stopped or cut off\n");
  }
  for (const auto& [what, who] : waiting) {
    StrAppend(&text, who.size() == 1 ? Name(*who[0]) + " waits" : StrCat(who.size(), " ranks wait"),
              " for ", what, ", in \"", who[0]->phase, "\"\n");
  }
  return text;
}

}  // namespace lt2
