#include "kernels/attention.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/case.h"
#include "kernels/gated_product.h"

namespace lt2 {
namespace {

struct Sizes {
  int64_t B, T, H, G, D, E, window;
  bool gated;
  std::vector<int64_t> cu_seqlens;
  double spread = 1;  // of queries: large ones make the softmax pick single keys
};

CaseData Instance(uint64_t seed, const Sizes& s) {
  CaseData data{.op = "attention",
                .name = absl::StrCat("b", s.B, "t", s.T, "h", s.H, "x", s.G, "d", s.D, "e", s.E,
                                     "w", s.window, s.gated ? "_gated" : "",
                                     s.cu_seqlens.empty() ? "" : "_packed"),
                .attributes = {{"scale", 1 / std::sqrt(double(s.D))}, {"window", double(s.window)}},
                .inputs = {{"q", RandomNormal(seed, "q", {s.B, s.T, s.H, s.D}, s.spread)},
                           {"k", RandomNormal(seed, "k", {s.B, s.T, s.G, s.D})},
                           {"v", RandomNormal(seed, "v", {s.B, s.T, s.G, s.E})}}};
  if (s.gated) data.inputs["gate"] = RandomNormal(seed, "gate", {s.B, s.T, s.H, s.E});
  if (!s.cu_seqlens.empty()) data.inputs["cu_seqlens"] = IntArray(s.cu_seqlens);
  return data;
}

}  // namespace

OpCase AttentionCase() {
  return {.op = "attention",
          .run = [](CaseContext& c) -> std::map<std::string, Var> {
            const AttentionOptions options{.scale = c.Number("scale"),
                                           .window = static_cast<int64_t>(c.Number("window", 0))};
            Var o = Attention(c.tape(), c.FlatIn("q"), c.FlatIn("k"), c.FlatIn("v"), options,
                              c.documents("q"));
            if (c.Has("gate")) o = SigmoidGate(c.tape(), o, c.FlatIn("gate"));
            return {{"o", o}};
          },
          .instances =
              [](uint64_t seed) {
                std::vector<CaseData> all;
                for (const Sizes& sizes :
                     std::vector<Sizes>{{2, 70, 4, 2, 16, 16, 0, false, {}},
                                        {1, 150, 2, 1, 8, 24, 17, true, {0, 1, 64, 65, 130, 150}},
                                        {1, 5, 1, 1, 3, 5, 2, false, {}},
                                        {1, 1, 2, 2, 4, 4, 0, true, {}},
                                        {1, 130, 3, 1, 20, 20, 64, false, {0, 129, 130}, 4}}) {
                  all.push_back(Instance(seed, sizes));
                }
                return all;
              },
          .bench =
              [] {
                return Instance(0, {8, 256, 4, 4, 32, 32, 0, false, {}});
              },
          .gpu_bench =
              [] {
                return Instance(0, {2, 4096, 16, 16, 128, 128, 0, false, {}});
              }};
}

}  // namespace lt2
