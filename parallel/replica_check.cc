#include "parallel/replica_check.h"

#include <algorithm>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "kernels/checksum.h"

namespace lt2 {
namespace {

// Of each parameter, as text: two numbers.
std::vector<std::string> ChecksumsOf(Stream& stream, std::span<Param* const> params) {
  std::vector<Tensor> masters;
  for (const Param* param : params) masters.push_back(param->master);
  const Tensor sums =
      Tensor::Zeros({static_cast<int64_t>(params.size()), 2}, DType::kI32, stream.device);
  Checksums(stream, {.x = masters, .sums = sums});
  const std::vector<double> halves = sums.ToDoubles();
  std::vector<std::string> texts;
  for (size_t p = 0; p < params.size(); ++p) {
    texts.push_back(absl::StrCat(static_cast<int64_t>(halves[2 * p]), ":",
                                 static_cast<int64_t>(halves[2 * p + 1])));
  }
  return texts;
}

// What most ranks say; of equally many the first one's.
std::string Commonest(const std::vector<std::string>& said) {
  return *std::ranges::max_element(
      said, {}, [&](const std::string& text) { return std::ranges::count(said, text); });
}

// Of one group and the parameters it holds: in each rank's line who it is and then its checksums.
absl::Status Compare(const std::vector<std::string>& lines,
                     const std::vector<const Param*>& params) {
  std::vector<std::vector<std::string>> ranks;
  for (const std::string& line : lines) ranks.push_back(absl::StrSplit(line, ' '));
  for (size_t p = 0; p < params.size(); ++p) {
    std::vector<std::string> said;
    for (const auto& rank : ranks) said.push_back(rank[p + 1]);
    const std::string common = Commonest(said);
    std::vector<std::string> fewer;
    for (size_t r = 0; r < ranks.size(); ++r) {
      if (said[r] != common) fewer.push_back(ranks[r][0]);
    }
    if (fewer.empty()) continue;
    const bool even = 2 * fewer.size() == ranks.size();
    if (even) {
      for (size_t r = 0; r < ranks.size(); ++r) {
        if (said[r] == common) fewer.push_back(ranks[r][0]);
      }
    }
    return absl::InternalError(
        absl::StrCat("replicas have drifted apart: ", absl::StrJoin(fewer, ", "),
                     even ? " hold different bits of " : " does not hold the others' bits of ",
                     params[p]->spec.name));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckReplicas(Stream& stream, std::span<Param* const> params,
                           const LayoutTable& layout, const RankGroups& groups) {
  const std::vector<std::string> checksums = ChecksumsOf(stream, params);
  // Every rank of a group has the same of these, in the same order.
  std::map<Communicator*, std::vector<int>> by_holders;
  std::vector<Communicator*> order;
  for (const LayoutEntry& entry : layout.entries) {
    Communicator& holders = HoldersOf(layout.buckets[entry.bucket], groups);
    if (!by_holders.contains(&holders)) order.push_back(&holders);
    by_holders[&holders].push_back(entry.param);
  }
  const Communicator& world = *groups.world;
  absl::Status status;
  for (Communicator* holders : order) {
    std::string line = absl::StrCat("rank-", world.rank(), "-on-", world.host());
    std::vector<const Param*> held;
    for (int p : by_holders[holders]) {
      absl::StrAppend(&line, " ", checksums[p]);
      held.push_back(params[p]);
    }
    status.Update(Compare(holders->GatherStrings(line), held));
  }
  return status;
}

}  // namespace lt2
