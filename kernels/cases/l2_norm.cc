#include "kernels/l2_norm.h"

#include "absl/strings/str_cat.h"
#include "kernels/case.h"

namespace lt2 {
namespace {

CaseData Instance(uint64_t seed, int64_t rows, int64_t heads, int64_t d, double scale) {
  return {.op = "l2_norm",
          .name = absl::StrCat(rows, "x", heads, "x", d, " scale ", scale),
          .attributes = {{"eps", 1e-6}, {"head_dim", static_cast<double>(d)}},
          .inputs = {{"x", RandomNormal(seed, "x", {rows, heads * d}, scale)}}};
}

}  // namespace

OpCase L2NormCase() {
  return {.op = "l2_norm",
          .run = [](CaseContext& c) -> std::map<std::string, Var> {
            const Var x = c.In("x");
            const auto d = static_cast<int64_t>(c.Number("head_dim", x.shape().back()));
            return {{"y", L2Norm(c.tape(), x, d, c.Number("eps"))}};
          },
          .instances =
              [](uint64_t seed) {
                return std::vector<CaseData>{
                    Instance(seed, 1, 1, 2, 1), Instance(seed, 9, 3, 24, 1e-3),
                    Instance(seed, 301, 2, 96, 1), Instance(seed, 40, 1, 33, 100)};
              },
          .bench = [] { return Instance(0, 2048, 4, 64, 1); },
          .gpu_bench = [] { return Instance(0, 32768, 16, 96, 1); }};
}

}  // namespace lt2
