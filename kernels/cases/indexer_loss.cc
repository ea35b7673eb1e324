#include "kernels/indexer_loss.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/case.h"

namespace lt2 {
namespace {

class GroupOfOne final : public RankLink {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void Sum(const Tensor&) override {}
  void Max(const Tensor&) override {}
};

struct Sizes {
  int64_t T, J, C, H, G, D, selected;
  std::vector<int64_t> cu_seqlens;
  bool linked = false;  // targets go through an exchange
};

// Ascending lists of up to S positions, the token's own among them.
HostArray RandomLists(uint64_t seed, const std::vector<int64_t>& cu_seqlens, int64_t S) {
  const int64_t N = cu_seqlens.back();
  HostArray lists{.shape = {N, S}, .integer = true};
  const HostArray draws = RandomUniform(seed, "lists", {N, N}, 0, 1);
  for (size_t d = 0; d + 1 < cu_seqlens.size(); ++d) {
    for (int64_t t = cu_seqlens[d]; t < cu_seqlens[d + 1]; ++t) {
      const int64_t position = t - cu_seqlens[d];
      std::vector<std::pair<double, int64_t>> order;
      for (int64_t s = 0; s < position; ++s) order.emplace_back(draws.values[t * N + s], s);
      std::ranges::sort(order);
      std::vector<int64_t> keys = {position};
      for (const auto& [draw, s] : order) {
        if (static_cast<int64_t>(keys.size()) < S) keys.push_back(s);
      }
      std::ranges::sort(keys);
      keys.resize(S, -1);
      lists.values.insert(lists.values.end(), keys.begin(), keys.end());
    }
  }
  return lists;
}

// Keys are positive and a head's query has one sign, so that no q · k is near to where max(·, 0)
// has no derivative; half of them are below 0.
CaseData Instance(uint64_t seed, const Sizes& s) {
  HostArray a = RandomUniform(seed, "a", {1, s.T, s.J, s.C}, 0.2, 1.2);
  const HostArray signs = RandomUniform(seed, "signs", {s.T, s.J}, -1, 1);
  for (size_t i = 0; i < a.values.size(); ++i) {
    if (signs.values[i / s.C] < 0) a.values[i] *= -1;
  }
  CaseData data{.op = "indexer_loss",
                .name = absl::StrCat("t", s.T, "j", s.J, "c", s.C, "h", s.H, "x", s.G, "d", s.D,
                                     " best ", s.selected, s.linked ? " linked" : ""),
                .attributes = {{"scale", 1 / std::sqrt(static_cast<double>(s.D))},
                               {"weight", 0.5},
                               {"linked", s.linked ? 1.0 : 0.0}},
                .inputs = {{"a", a},
                           {"b", RandomUniform(seed, "b", {1, s.T, s.C}, 0.2, 1.2)},
                           {"w", RandomNormal(seed, "w", {1, s.T, s.J})},
                           {"q", RandomNormal(seed, "q", {s.T, s.H, s.D})},
                           {"k", RandomNormal(seed, "k", {s.T, s.G, s.D})},
                           {"lse", RandomUniform(seed, "lse", {s.T, s.H}, 1, 2)},
                           {"keys", RandomLists(seed, s.cu_seqlens, s.selected)},
                           {"cu_seqlens", IntArray(s.cu_seqlens)}}};
  return data;
}

}  // namespace

OpCase IndexerLossCase() {
  return {.op = "indexer_loss",
          .run = [](CaseContext& c) -> std::map<std::string, Var> {
            const IndexerTarget target{.q_NHD = c.Value("q"),
                                       .k_NGD = c.Value("k"),
                                       .lse_NH = c.Value("lse"),
                                       .keys_NS = c.Ints("keys"),
                                       .scale = c.Number("scale"),
                                       .documents = c.documents("a")};
            static GroupOfOne alone;
            return {{"loss", IndexerLoss(c.tape(), c.FlatIn("a"), c.FlatIn("b"), c.FlatIn("w"),
                                         target, c.Number("weight", 1),
                                         c.Number("linked", 0) > 0 ? &alone : nullptr)}};
          },
          .instances =
              [](uint64_t seed) {
                std::vector<CaseData> all;
                for (const Sizes& sizes :
                     std::vector<Sizes>{{70, 4, 8, 4, 1, 18, 9, {0, 70}},
                                        {100, 3, 5, 6, 2, 8, 33, {0, 1, 64, 65, 100}},
                                        {70, 4, 8, 4, 1, 18, 9, {0, 70}, /*linked=*/true},
                                        {100, 3, 5, 6, 2, 8, 33, {0, 1, 64, 65, 100}, true},
                                        {20, 1, 1, 2, 2, 3, 64, {0, 20}},
                                        {40, 2, 4, 4, 2, 300, 12, {0, 25, 40}},
                                        {1, 2, 3, 1, 1, 1, 4, {0, 1}}}) {
                  all.push_back(Instance(seed, sizes));
                }
                return all;
              },
          .bench =
              [] {
                return Instance(0, {1024, 8, 32, 8, 1, 144, 128, {0, 1024}});
              }};
}

}  // namespace lt2
