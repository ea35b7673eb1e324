#include "checkpoints/agreement.h"

#include <algorithm>

#include "core/status_macros.h"
#include "core/strings.h"

namespace lt2 {
namespace {

// One digit pair for the code, then the message or the text.
std::string Encode(const absl::StatusOr<std::string>& result) {
  const int code = static_cast<int>(result.status().code());
  const std::string text = result.ok() ? *result : std::string(result.status().message());
  return StrCat(code < 10 ? "0" : "", code, text);
}

absl::StatusOr<std::string> Decode(const std::string& encoded) {
  CHECK_GE(encoded.size(), size_t{2});
  const int code = (encoded[0] - '0') * 10 + (encoded[1] - '0');
  const std::string text = encoded.substr(2);
  if (code == 0) return text;
  return absl::Status(static_cast<absl::StatusCode>(code), text);
}

// Each text ends with a NUL.
std::string Join(const std::vector<std::string>& texts) {
  std::string joined;
  for (const std::string& text : texts) joined.append(text).push_back('\0');
  return joined;
}

std::vector<std::string> Split(const std::string& joined) {
  std::vector<std::string> texts;
  for (size_t at = 0; at < joined.size(); at += texts.back().size() + 1) {
    texts.emplace_back(joined.c_str() + at);
  }
  return texts;
}

}  // namespace

std::vector<absl::StatusOr<std::string>> GatherResults(Communicator& group,
                                                       const absl::StatusOr<std::string>& mine) {
  std::vector<absl::StatusOr<std::string>> results;
  for (const std::string& encoded : group.GatherStrings(Encode(mine))) {
    results.push_back(Decode(encoded));
  }
  return results;
}

absl::StatusOr<std::string> BroadcastResult(Communicator& group,
                                            const absl::StatusOr<std::string>& result) {
  return Decode(group.BroadcastString(group.rank() == 0 ? Encode(result) : ""));
}

absl::StatusOr<std::vector<std::string>> BroadcastList(
    Communicator& group, const absl::StatusOr<std::vector<std::string>>& list) {
  ASSIGN_OR_RETURN(
      const std::string text,
      BroadcastResult(group, list.ok() ? absl::StatusOr<std::string>(Join(*list)) : list.status()));
  return Split(text);
}

std::vector<std::string> GatherList(Communicator& group, const std::vector<std::string>& mine) {
  std::vector<std::string> all;
  for (const std::string& theirs : group.GatherStrings(Join(mine))) {
    for (std::string& text : Split(theirs)) all.push_back(std::move(text));
  }
  return all;
}

absl::Status Agree(Communicator& group, const absl::Status& status) {
  absl::StatusOr<std::string> mine = std::string();
  if (!status.ok()) mine = status;
  const std::vector<absl::StatusOr<std::string>> results = GatherResults(group, mine);
  const auto failed =
      std::find_if(results.begin(), results.end(), [](const auto& result) { return !result.ok(); });
  if (failed == results.end()) return absl::OkStatus();
  const bool alike = std::all_of(results.begin(), results.end(), [&](const auto& result) {
    return result.status() == failed->status();
  });
  if (alike) return failed->status();
  const int rank = static_cast<int>(failed - results.begin());
  const std::vector<std::string> hosts = group.GatherStrings(group.host());
  return absl::Status(failed->status().code(),
                      StrCat("rank ", rank, " (", hosts[rank], "): ", failed->status().message()));
}

}  // namespace lt2
