#include "kernels/lightning_indexer.h"

#include "absl/strings/str_cat.h"
#include "kernels/case.h"

namespace lt2 {
namespace {

struct Sizes {
  int64_t B, T, H, D, selected;
  bool weights;
  std::vector<int64_t> cu_seqlens;
};

CaseData Instance(uint64_t seed, const Sizes& s) {
  CaseData data{
      .op = "lightning_indexer",
      .name = absl::StrCat("b", s.B, "t", s.T, "h", s.H, "d", s.D, " best ", s.selected,
                           s.weights ? "" : " unweighted", s.cu_seqlens.empty() ? "" : " packed"),
      .attributes = {{"selected", static_cast<double>(s.selected)}},
      .inputs = {{"q", RandomNormal(seed, "q", {s.B, s.T, s.H, s.D})},
                 {"k", RandomNormal(seed, "k", {s.B, s.T, s.D})}}};
  if (s.weights) data.inputs["w"] = RandomNormal(seed, "w", {s.B, s.T, s.H});
  if (!s.cu_seqlens.empty()) data.inputs["cu_seqlens"] = IntArray(s.cu_seqlens);
  return data;
}

}  // namespace

OpCase LightningIndexerCase() {
  return {.op = "lightning_indexer",
          .run = [](CaseContext& c) -> std::map<std::string, Var> {
            const Tensor q = c.Value("q"), k = c.Value("k");
            const int64_t tokens = q.dim(0) * q.dim(1), heads = q.dim(2), dim = q.dim(3);
            const Tensor keys = LightningIndexer(
                c.tape(), q.Reshape({tokens, heads, dim}), k.Reshape({tokens, dim}),
                c.Has("w") ? c.Value("w").Reshape({tokens, heads}) : Tensor(),
                static_cast<int64_t>(c.Number("selected")), c.documents("q"));
            return {{"keys", c.tape().Input(keys)}};
          },
          .instances =
              [](uint64_t seed) {
                std::vector<CaseData> all;
                // With two heads a quarter of all scores is exactly 0: ties.
                for (const Sizes& sizes :
                     std::vector<Sizes>{{2, 70, 4, 8, 9, true, {}},
                                        {1, 150, 2, 5, 16, true, {0, 1, 64, 65, 130, 150}},
                                        {1, 130, 3, 16, 17, false, {0, 3, 130}},
                                        {1, 1, 1, 1, 4, true, {}},
                                        {2, 20, 2, 3, 64, false, {}}}) {
                  all.push_back(Instance(seed, sizes));
                }
                return all;
              },
          .bench =
              [] {
                return Instance(0, {1, 2048, 8, 64, 256, true, {}});
              },
          .gpu_bench =
              [] {
                return Instance(0, {2, 4096, 8, 64, 512, true, {}});
              }};
}

}  // namespace lt2
