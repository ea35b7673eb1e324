#include "kernels/block_mean.h"

#include "absl/strings/str_cat.h"
#include "kernels/case.h"

namespace lt2 {
namespace {

CaseData Instance(uint64_t seed, const Shape& shape, int64_t block,
                  const std::vector<int64_t>& cu_seqlens = {}) {
  CaseData data{.op = "block_mean",
                .name = absl::StrCat("b", shape[0], "t", shape[1], "x", shape[2], "d", shape[3],
                                     "l", block, cu_seqlens.empty() ? "" : "_packed"),
                .attributes = {{"block", double(block)}},
                .inputs = {{"x", RandomNormal(seed, "x", shape)}}};
  if (!cu_seqlens.empty()) data.inputs["cu_seqlens"] = IntArray(cu_seqlens);
  return data;
}

}  // namespace

OpCase BlockMeanCase() {
  return {.op = "block_mean",
          .run = [](CaseContext& c) -> std::map<std::string, Var> {
            return {{"mean", BlockMean(c.tape(), c.FlatIn("x"),
                                       static_cast<int64_t>(c.Number("block")), c.documents("x"))}};
          },
          .instances =
              [](uint64_t seed) {
                return std::vector<CaseData>{
                    Instance(seed, {2, 70, 2, 16}, 8),
                    Instance(seed, {1, 150, 3, 5}, 7, {0, 1, 64, 65, 130, 150}),
                    Instance(seed, {1, 5, 1, 4}, 6),
                    Instance(seed, {1, 9, 2, 3}, 1, {0, 4, 9}),
                };
              },
          .bench =
              [] {
                return Instance(0, {8, 1024, 4, 64}, 64);
              },
          .gpu_bench =
              [] {
                return Instance(0, {4, 4096, 16, 128}, 64);
              }};
}

}  // namespace lt2
