#include "kernels/layer_norm.h"

#include "absl/strings/str_cat.h"
#include "kernels/case.h"

namespace lt2 {
namespace {

CaseData Instance(uint64_t seed, int64_t rows, int64_t heads, int64_t v, double offset) {
  CaseData data{.op = "layer_norm",
                .name = absl::StrCat(rows, "x", heads, "x", v, " offset ", offset),
                .attributes = {{"eps", 1e-6}, {"group", static_cast<double>(v)}},
                .inputs = {{"x", RandomNormal(seed, "x", {rows, heads * v})},
                           {"w", RandomNormal(seed, "w", {heads * v})}}};
  for (double& x : data.inputs["x"].values) x = static_cast<float>(x + offset);
  return data;
}

}  // namespace

OpCase LayerNormCase() {
  return {.op = "layer_norm",
          .run = [](CaseContext& c) -> std::map<std::string, Var> {
            return {{"y", LayerNorm(c.tape(), c.In("x"), c.Weight("w"),
                                    static_cast<int64_t>(c.Number("group")), c.Number("eps"))}};
          },
          .instances =
              [](uint64_t seed) {
                return std::vector<CaseData>{
                    Instance(seed, 1, 1, 3, 0), Instance(seed, 7, 3, 24, 0.5),
                    Instance(seed, 211, 2, 96, 2), Instance(seed, 150, 5, 33, -1)};
              },
          .bench = [] { return Instance(0, 2048, 4, 64, 0); },
          .gpu_bench = [] { return Instance(0, 16384, 16, 128, 0); }};
}

}  // namespace lt2
