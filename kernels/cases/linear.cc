#include "kernels/linear.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/case.h"

namespace lt2 {
namespace {

CaseData Instance(uint64_t seed, int64_t rows, int64_t in, int64_t out) {
  return {.op = "linear",
          .name = absl::StrCat(rows, "x", in, "x", out),
          .inputs = {{"x", RandomNormal(seed, "x", {rows, in})},
                     {"w", RandomNormal(seed, "w", {out, in}, 1.0 / std::sqrt(double(in)))}}};
}

}  // namespace

OpCase LinearCase() {
  return {.op = "linear",
          .run = [](CaseContext& c) -> std::map<std::string, Var> {
            return {{"y", Linear(c.tape(), c.In("x"), c.Matrix("w"))}};
          },
          .instances =
              [](uint64_t seed) {
                return std::vector<CaseData>{Instance(seed, 1, 1, 1), Instance(seed, 77, 33, 131),
                                             Instance(seed, 1100, 37, 48),
                                             Instance(seed, 5, 64, 1030)};
              },
          .bench = [] { return Instance(0, 2048, 128, 384); }};
}

}  // namespace lt2
