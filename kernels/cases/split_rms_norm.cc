#include "kernels/split_rms_norm.h"

#include "absl/strings/str_cat.h"
#include "kernels/case.h"
#include "kernels/cases/link_to_nothing.h"

namespace lt2 {
namespace {

CaseData Instance(uint64_t seed, int64_t rows, int64_t width, double scale, double eps) {
  return {.op = "split_rms_norm",
          .name = absl::StrCat(rows, "x", width, " scale ", scale, " eps ", eps),
          .attributes = {{"eps", eps}},
          .inputs = {{"x", RandomNormal(seed, "x", {rows, width}, scale)},
                     {"w", RandomNormal(seed, "w", {width})}}};
}

}  // namespace

OpCase SplitRmsNormCase() {
  return {.op = "split_rms_norm",
          .run = [](CaseContext& c) -> std::map<std::string, Var> {
            static LinkToNothing link;
            return {{"y", SplitRmsNorm(c.tape(), c.In("x"), c.Weight("w"), c.Number("eps"), link)}};
          },
          .instances =
              [](uint64_t seed) {
                return std::vector<CaseData>{
                    Instance(seed, 1, 1, 1e-3, 1e-6), Instance(seed, 5, 40, 1e-4, 1e-6),
                    Instance(seed, 300, 131, 1, 1e-5), Instance(seed, 70, 512, 1e3, 1e-6)};
              },
          .bench = [] { return Instance(0, 2048, 256, 1, 1e-6); },
          .gpu_bench = [] { return Instance(0, 16384, 2048, 1, 1e-6); }};
}

}  // namespace lt2
