#include "kernels/selected_attention.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/case.h"

namespace lt2 {
namespace {

struct Sizes {
  int64_t B, T, H, G, D, E, S, block;
  std::vector<int64_t> cu_seqlens;
};

// Distinct blocks of each token's past, in random order and now and then fewer than S, or none.
HostArray RandomLists(uint64_t seed, const Sizes& s) {
  HostArray lists = RandomUniform(seed, "blocks", {s.B, s.T, s.G, s.S}, 0, 1);
  lists.integer = true;
  const HostArray order = RandomUniform(seed, "order", {s.B, s.T, s.G, s.T / s.block + 1}, 0, 1);
  for (int64_t n = 0; n < s.B * s.T; ++n) {
    int64_t position = n % s.T;
    for (int64_t begin : s.cu_seqlens) {
      if (begin <= n) position = n - begin;
    }
    for (int64_t g = 0; g < s.G; ++g) {
      const double* keys = order.values.data() + (n * s.G + g) * order.shape[3];
      std::vector<int64_t> blocks;
      for (int64_t c = 0; c <= position / s.block; ++c) blocks.push_back(c);
      std::ranges::sort(blocks, {}, [&](int64_t c) { return keys[c]; });
      double* list = lists.values.data() + (n * s.G + g) * s.S;
      for (int64_t i = 0; i < s.S; ++i) {
        const bool there = i < static_cast<int64_t>(blocks.size()) && list[i] > 0.1;
        list[i] = there ? static_cast<double>(blocks[i]) : -1;
      }
    }
  }
  return lists;
}

CaseData Instance(uint64_t seed, const Sizes& s) {
  CaseData data{.op = "selected_attention",
                .name = absl::StrCat("b", s.B, "t", s.T, "h", s.H, "x", s.G, "d", s.D, "e", s.E,
                                     "s", s.S, "l", s.block, s.cu_seqlens.empty() ? "" : "_packed"),
                .attributes = {{"scale", 1 / std::sqrt(double(s.D))}, {"block", double(s.block)}},
                .inputs = {{"q", RandomNormal(seed, "q", {s.B, s.T, s.H, s.D})},
                           {"k", RandomNormal(seed, "k", {s.B, s.T, s.G, s.D})},
                           {"v", RandomNormal(seed, "v", {s.B, s.T, s.G, s.E})},
                           {"blocks", RandomLists(seed, s)}}};
  if (!s.cu_seqlens.empty()) data.inputs["cu_seqlens"] = IntArray(s.cu_seqlens);
  return data;
}

}  // namespace

OpCase SelectedAttentionCase() {
  return {.op = "selected_attention",
          .run = [](CaseContext& c) -> std::map<std::string, Var> {
            const Documents& documents = c.documents("q");
            const Tensor blocks = c.Ints("blocks");
            const Var o = SelectedAttention(
                c.tape(), c.FlatIn("q"), c.FlatIn("k"), c.FlatIn("v"),
                blocks.Reshape({documents.tokens(), blocks.dim(2), blocks.dim(3)}),
                {.scale = c.Number("scale"), .block = static_cast<int64_t>(c.Number("block"))},
                documents);
            return {{"o", o}};
          },
          .instances =
              [](uint64_t seed) {
                std::vector<CaseData> all;
                for (const Sizes& sizes :
                     std::vector<Sizes>{{2, 70, 4, 2, 16, 16, 3, 8, {}},
                                        {1, 150, 6, 2, 8, 24, 5, 7, {0, 1, 64, 65, 130, 150}},
                                        {1, 130, 3, 1, 20, 9, 40, 1, {0, 129, 130}},
                                        {1, 1, 2, 2, 4, 4, 2, 4, {}},
                                        {1, 600, 2, 2, 4, 4, 3, 64, {0, 560, 600}}}) {
                  all.push_back(Instance(seed, sizes));
                }
                return all;
              },
          .bench =
              [] {
                return Instance(0, {4, 512, 32, 2, 32, 32, 4, 32, {}});
              },
          .gpu_bench =
              [] {
                return Instance(0, {2, 4096, 64, 4, 128, 128, 16, 64, {}});
              }};
}

}  // namespace lt2
