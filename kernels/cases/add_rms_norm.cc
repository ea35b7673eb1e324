#include "kernels/add_rms_norm.h"

#include "absl/strings/str_cat.h"
#include "kernels/case.h"

namespace lt2 {
namespace {

CaseData Instance(uint64_t seed, int64_t rows, int64_t width) {
  return {.op = "add_rms_norm",
          .name = absl::StrCat(rows, "x", width),
          .attributes = {{"eps", 1e-6}},
          .inputs = {{"x", RandomNormal(seed, "x", {rows, width})},
                     {"residual", RandomNormal(seed, "residual", {rows, width})},
                     {"w", RandomNormal(seed, "w", {width})}}};
}

}  // namespace

OpCase AddRmsNormCase() {
  return {.op = "add_rms_norm",
          .run = [](CaseContext& c) -> std::map<std::string, Var> {
            auto [sum, normed] =
                AddRmsNorm(c.tape(), c.In("x"), c.In("residual"), c.Weight("w"), c.Number("eps"));
            return {{"sum", sum}, {"y", normed}};
          },
          .instances =
              [](uint64_t seed) {
                return std::vector<CaseData>{Instance(seed, 1, 1), Instance(seed, 5, 40),
                                             Instance(seed, 300, 131), Instance(seed, 75, 1024)};
              },
          .bench = [] { return Instance(0, 2048, 256); },
          .gpu_bench = [] { return Instance(0, 8192, 2048); }};
}

}  // namespace lt2
