#include "kernels/add_bias.h"

#include "absl/strings/str_cat.h"
#include "kernels/case.h"

namespace lt2 {
namespace {

CaseData Instance(uint64_t seed, int64_t rows, int64_t width) {
  return {.op = "add_bias",
          .name = absl::StrCat(rows, "x", width),
          .inputs = {{"x", RandomNormal(seed, "x", {rows, width})},
                     {"b", RandomNormal(seed, "b", {width})}}};
}

}  // namespace

OpCase AddBiasCase() {
  return {.op = "add_bias",
          .run = [](CaseContext& c) -> std::map<std::string, Var> {
            return {{"y", AddBias(c.tape(), c.In("x"), c.Weight("b"))}};
          },
          .instances =
              [](uint64_t seed) {
                return std::vector<CaseData>{Instance(seed, 1, 1), Instance(seed, 7, 33),
                                             Instance(seed, 500, 96)};
              },
          .bench = [] { return Instance(0, 2048, 256); },
          .gpu_bench = [] { return Instance(0, 16384, 2048); }};
}

}  // namespace lt2
