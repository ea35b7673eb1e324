#include "kernels/beta_gate.h"

#include "absl/strings/str_cat.h"
#include "kernels/case.h"

namespace lt2 {
namespace {

CaseData Instance(uint64_t seed, int64_t tokens, int64_t heads, double scale) {
  return {.op = "beta_gate",
          .name = absl::StrCat(tokens, "x", heads, " scale ", scale),
          .attributes = {{"scale", scale}},
          .inputs = {{"b", RandomNormal(seed, "b", {tokens, heads}, 4)}}};
}

}  // namespace

OpCase BetaGateCase() {
  return {.op = "beta_gate",
          .run = [](CaseContext& c) -> std::map<std::string, Var> {
            return {{"beta", BetaGate(c.tape(), c.In("b"), c.Number("scale"))}};
          },
          .instances =
              [](uint64_t seed) {
                return std::vector<CaseData>{Instance(seed, 1, 1, 1), Instance(seed, 77, 3, 2),
                                             Instance(seed, 2000, 9, 1)};
              },
          .bench = [] { return Instance(0, 2048, 4, 1); },
          .gpu_bench = [] { return Instance(0, 1 << 20, 16, 1); }};
}

}  // namespace lt2
