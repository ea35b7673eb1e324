#include "kernels/loop_residual.h"

#include "absl/strings/str_cat.h"
#include "kernels/case.h"

namespace lt2 {
namespace {

CaseData Instance(uint64_t seed, int64_t rows, int64_t width, int64_t loops, int64_t loop) {
  return {.op = "loop_residual",
          .name = absl::StrCat(rows, "x", width, " loop ", loop, " of ", loops),
          .attributes = {{"loop", static_cast<double>(loop)}},
          .inputs = {{"x", RandomNormal(seed, "x", {rows, width})},
                     {"previous", RandomNormal(seed, "previous", {rows, width})},
                     {"rho", RandomNormal(seed, "rho", {loops, width})}}};
}

}  // namespace

OpCase LoopResidualCase() {
  return {.op = "loop_residual",
          .run = [](CaseContext& c) -> std::map<std::string, Var> {
            return {{"y", LoopResidual(c.tape(), c.In("x"), c.In("previous"), c.Weight("rho"),
                                       static_cast<int>(c.Number("loop")))}};
          },
          .instances =
              [](uint64_t seed) {
                return std::vector<CaseData>{Instance(seed, 1, 1, 1, 0),
                                             Instance(seed, 7, 40, 4, 2),
                                             Instance(seed, 200, 131, 2, 1)};
              },
          .bench = [] { return Instance(0, 2048, 256, 4, 3); },
          .gpu_bench = [] { return Instance(0, 8192, 2048, 4, 3); }};
}

}  // namespace lt2
