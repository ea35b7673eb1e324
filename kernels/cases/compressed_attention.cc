#include "kernels/compressed_attention.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/block_mean.h"
#include "kernels/case.h"

namespace lt2 {
namespace {

struct Sizes {
  int64_t B, T, H, G, D, E, block;
  std::vector<int64_t> cu_seqlens;
};

CaseData Instance(uint64_t seed, const Sizes& s) {
  const int64_t rows = BlockRows(s.B * s.T, s.block);
  CaseData data{.op = "compressed_attention",
                .name = absl::StrCat("b", s.B, "t", s.T, "h", s.H, "x", s.G, "d", s.D, "e", s.E,
                                     "l", s.block, s.cu_seqlens.empty() ? "" : "_packed"),
                .attributes = {{"scale", 1 / std::sqrt(double(s.D))}, {"block", double(s.block)}},
                .inputs = {{"q", RandomNormal(seed, "q", {s.B, s.T, s.H, s.D})},
                           {"k", RandomNormal(seed, "k", {rows, s.G, s.D})},
                           {"v", RandomNormal(seed, "v", {rows, s.G, s.E})}}};
  if (!s.cu_seqlens.empty()) data.inputs["cu_seqlens"] = IntArray(s.cu_seqlens);
  return data;
}

}  // namespace

OpCase CompressedAttentionCase() {
  return {.op = "compressed_attention",
          .run = [](CaseContext& c) -> std::map<std::string, Var> {
            const Var o = CompressedAttention(
                c.tape(), c.FlatIn("q"), c.In("k"), c.In("v"),
                {.scale = c.Number("scale"), .block = static_cast<int64_t>(c.Number("block"))},
                c.documents("q"));
            return {{"o", o}};
          },
          .instances =
              [](uint64_t seed) {
                std::vector<CaseData> all;
                for (const Sizes& sizes :
                     std::vector<Sizes>{{2, 70, 4, 2, 16, 16, 8, {}},
                                        {1, 150, 6, 2, 8, 24, 7, {0, 1, 64, 65, 130, 150}},
                                        {1, 150, 3, 3, 5, 9, 1, {0, 1, 129, 150}},
                                        {1, 12, 2, 1, 4, 4, 5, {0, 3, 12}}}) {
                  all.push_back(Instance(seed, sizes));
                }
                return all;
              },
          .bench =
              [] {
                return Instance(0, {4, 512, 32, 2, 32, 32, 32, {}});
              },
          .gpu_bench =
              [] {
                return Instance(0, {2, 4096, 64, 4, 128, 128, 64, {}});
              }};
}

}  // namespace lt2
