#include <algorithm>

#include "absl/strings/str_join.h"
#include "core/strings.h"
#include "model/config.h"
#include "model/mixers/registry.h"

namespace lt2 {
namespace {

// What ranks divide, by a name for people.
std::vector<HeadCount> Divided(const ModelConfig& config) {
  std::vector<HeadCount> all = {{"ffn", config.ffn}};
  const std::vector<std::string> kinds = *LayerKinds(config);
  for (const std::string& kind : kinds) {
    for (HeadCount count : HeadCountsOf(kind, config)) {
      count.name = StrCat(kind, "'s ", count.name);
      all.push_back(count);
    }
  }
  return all;
}

std::vector<HeadCount>::const_iterator NotDividedBy(const std::vector<HeadCount>& all,
                                                    int64_t ranks) {
  return std::ranges::find_if(all, [&](const auto& count) { return !count.DividedBy(ranks); });
}

}  // namespace

std::vector<int64_t> LegalSplits(const ModelConfig& config) {
  const std::vector<HeadCount> divided = Divided(config);
  std::vector<int64_t> legal;
  for (int64_t ranks = 1; ranks <= std::min(config.ffn, config.vocab); ++ranks) {
    if (NotDividedBy(divided, ranks) == divided.end()) legal.push_back(ranks);
  }
  return legal;
}

absl::Status CheckSplit(const ModelConfig& config, const TensorSplit& split) {
  const std::vector<HeadCount> divided = Divided(config);
  const auto wrong = NotDividedBy(divided, split.ranks);
  if (wrong == divided.end() && split.ranks <= config.vocab) return absl::OkStatus();
  const std::string what = wrong == divided.end()
                               ? StrCat("there are only vocab = ", config.vocab, " rows to divide")
                               : StrCat(wrong->name, " = ", wrong->heads, " must be a multiple ",
                                        wrong->shared ? "or a divisor " : "", "of tp");
  return absl::InvalidArgumentError(StrCat("tp = ", split.ranks, ": ", what,
                                           "; legal: ", absl::StrJoin(LegalSplits(config), ", ")));
}

}  // namespace lt2
