#include "kernels/select_blocks.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/block_mean.h"
#include "kernels/case.h"

namespace lt2 {
namespace {

struct Sizes {
  int64_t B, T, H, G, D, S, block;
  std::vector<int64_t> cu_seqlens;
};

CaseData Instance(uint64_t seed, const Sizes& s) {
  CaseData data{
      .op = "select_blocks",
      .name = absl::StrCat("b", s.B, "t", s.T, "h", s.H, "x", s.G, "d", s.D, "s", s.S, "l", s.block,
                           s.cu_seqlens.empty() ? "" : "_packed"),
      .attributes = {{"scale", 1 / std::sqrt(double(s.D))},
                     {"block", double(s.block)},
                     {"selected", double(s.S)}},
      .inputs = {{"q", RandomNormal(seed, "q", {s.B, s.T, s.H, s.D})},
                 {"k", RandomNormal(seed, "k", {BlockRows(s.B * s.T, s.block), s.G, s.D})}}};
  if (!s.cu_seqlens.empty()) data.inputs["cu_seqlens"] = IntArray(s.cu_seqlens);
  return data;
}

}  // namespace

OpCase SelectBlocksCase() {
  return {.op = "select_blocks",
          .run = [](CaseContext& c) -> std::map<std::string, Var> {
            const Documents& documents = c.documents("q");
            const Tensor q = c.Value("q");
            const Tensor blocks = SelectBlocks(
                c.tape(), q.Reshape({documents.tokens(), q.dim(2), q.dim(3)}), c.Value("k"),
                {.scale = c.Number("scale"),
                 .block = static_cast<int64_t>(c.Number("block")),
                 .selected = static_cast<int64_t>(c.Number("selected"))},
                documents);
            return {{"blocks", {.value = blocks}}};
          },
          .instances =
              [](uint64_t seed) {
                std::vector<CaseData> all;
                for (const Sizes& sizes :
                     std::vector<Sizes>{{2, 70, 4, 2, 16, 4, 8, {}},
                                        {1, 150, 6, 2, 8, 5, 3, {0, 1, 64, 65, 130, 150}},
                                        {1, 150, 3, 3, 5, 3, 1, {0, 1, 129, 150}},
                                        {1, 3, 2, 1, 4, 3, 5, {}}}) {
                  all.push_back(Instance(seed, sizes));
                }
                return all;
              },
          .bench =
              [] {
                return Instance(0, {4, 512, 32, 2, 32, 4, 16, {}});
              },
          .gpu_bench =
              [] {
                return Instance(0, {2, 4096, 64, 4, 128, 16, 64, {}});
              }};
}

}  // namespace lt2
