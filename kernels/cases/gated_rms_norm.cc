#include "kernels/gated_rms_norm.h"

#include "absl/strings/str_cat.h"
#include "kernels/case.h"

namespace lt2 {
namespace {

GateKind KindOf(const std::string& name) {
  CHECK(name == "swish" || name == "sigmoid") << name;
  return name == "swish" ? GateKind::kSwish : GateKind::kSigmoid;
}

CaseData Instance(uint64_t seed, int64_t rows, int64_t heads, int64_t v, const std::string& gate) {
  return {.op = "rms_norm_gate",
          .name = absl::StrCat(rows, "x", heads, "x", v, " ", gate),
          .attributes = {{"eps", 1e-5}, {"gate", gate}},
          .inputs = {{"x", RandomNormal(seed, "x", {rows, heads * v})},
                     {"gate", RandomNormal(seed, "gate", {rows, heads * v}, 3)},
                     {"w", RandomNormal(seed, "w", {v})}}};
}

}  // namespace

OpCase GatedRmsNormCase() {
  return {.op = "rms_norm_gate",
          .run = [](CaseContext& c) -> std::map<std::string, Var> {
            return {{"y", GatedRmsNorm(c.tape(), c.In("x"), c.In("gate"), c.Weight("w"),
                                       c.Number("eps"), KindOf(c.Text("gate")))}};
          },
          .instances =
              [](uint64_t seed) {
                return std::vector<CaseData>{
                    Instance(seed, 1, 1, 2, "swish"), Instance(seed, 7, 3, 24, "sigmoid"),
                    Instance(seed, 211, 2, 96, "swish"), Instance(seed, 150, 5, 33, "sigmoid")};
              },
          .bench = [] { return Instance(0, 2048, 4, 64, "swish"); },
          .gpu_bench = [] { return Instance(0, 8192, 16, 192, "swish"); }};
}

}  // namespace lt2
