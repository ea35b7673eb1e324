#include "checkpoints/agreement.h"

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

}  // namespace lt2
