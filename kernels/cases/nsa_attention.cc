#include "kernels/nsa_attention.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/case.h"

namespace lt2 {
namespace {

struct Sizes {
  int64_t B, T, H, G, D, E, block, selected, window;
  std::vector<int64_t> cu_seqlens;
};

// Queries of some size, so that blocks differ well in weight.
CaseData Instance(uint64_t seed, const Sizes& s) {
  CaseData data{
      .op = "nsa",
      .name = absl::StrCat("b", s.B, "t", s.T, "h", s.H, "x", s.G, "d", s.D, "e", s.E, "l", s.block,
                           "s", s.selected, "w", s.window, s.cu_seqlens.empty() ? "" : "_packed"),
      .attributes = {{"scale", 1 / std::sqrt(double(s.D))},
                     {"block", double(s.block)},
                     {"selected", double(s.selected)},
                     {"window", double(s.window)}},
      .inputs = {{"q", RandomNormal(seed, "q", {s.B, s.T, s.H, s.D}, 2)},
                 {"k", RandomNormal(seed, "k", {s.B, s.T, s.G, s.D})},
                 {"v", RandomNormal(seed, "v", {s.B, s.T, s.G, s.E})},
                 {"gate", RandomNormal(seed, "gate", {s.B, s.T, s.H, 3})}}};
  if (!s.cu_seqlens.empty()) data.inputs["cu_seqlens"] = IntArray(s.cu_seqlens);
  return data;
}

}  // namespace

OpCase NsaAttentionCase() {
  return {
      .op = "nsa",
      .run = [](CaseContext& c) -> std::map<std::string, Var> {
        const auto whole = [&](const char* name) { return static_cast<int64_t>(c.Number(name)); };
        const NsaOutput out =
            NsaAttention(c.tape(), c.FlatIn("q"), c.FlatIn("k"), c.FlatIn("v"), c.FlatIn("gate"),
                         {.scale = c.Number("scale"),
                          .block = whole("block"),
                          .selected = whole("selected"),
                          .window = whole("window")},
                         c.documents("q"));
        return {{"o", out.o_NHE}, {"blocks", {.value = out.blocks_NGS}}};
      },
      .instances =
          [](uint64_t seed) {
            std::vector<CaseData> all;
            for (const Sizes& sizes :
                 std::vector<Sizes>{{2, 40, 4, 2, 8, 8, 4, 4, 5, {}},
                                    {1, 90, 6, 1, 6, 9, 5, 3, 7, {0, 1, 30, 31, 90}},
                                    {1, 1, 2, 2, 4, 4, 2, 3, 1, {}}}) {
              all.push_back(Instance(seed, sizes));
            }
            return all;
          },
      .bench =
          [] {
            return Instance(0, {4, 512, 32, 2, 32, 32, 32, 4, 64, {}});
          },
      .gpu_bench =
          [] {
            return Instance(0, {1, 4096, 64, 4, 128, 128, 64, 16, 512, {}});
          }};
}

}  // namespace lt2
