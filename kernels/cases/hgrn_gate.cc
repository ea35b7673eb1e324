#include "kernels/hgrn_gate.h"

#include "absl/strings/str_cat.h"
#include "kernels/case.h"

namespace lt2 {
namespace {

CaseData Gate(uint64_t seed, int64_t tokens, int64_t width, double scale, double highest) {
  return {.op = "hgrn_gate",
          .name = absl::StrCat(tokens, "x", width, " scale ", scale, " bounds to ", highest),
          .inputs = {{"f", RandomNormal(seed, "f", {tokens, width}, scale)},
                     {"bound", RandomUniform(seed, "bound", {width}, 0, highest)}}};
}

CaseData Bound(uint64_t seed, int64_t layers, int64_t width, int64_t layer) {
  return {.op = "lower_bound",
          .name = absl::StrCat(layer, " of ", layers, " width ", width),
          .attributes = {{"layer", static_cast<double>(layer)}},
          .inputs = {{"table", RandomNormal(seed, "table", {layers, width})}}};
}

}  // namespace

OpCase HgrnGateCase() {
  return {.op = "hgrn_gate",
          .run = [](CaseContext& c) -> std::map<std::string, Var> {
            const HgrnGates gates = HgrnGate(c.tape(), c.In("f"), c.In("bound"));
            return {{"g", gates.g_ND}, {"k", gates.k_ND}};
          },
          .instances =
              [](uint64_t seed) {
                return std::vector<CaseData>{Gate(seed, 1, 1, 1, 0.5), Gate(seed, 77, 33, 4, 0.9),
                                             Gate(seed, 300, 64, 1, 1e-3)};
              },
          .bench = [] { return Gate(0, 2048, 256, 1, 0.9); },
          .gpu_bench = [] { return Gate(0, 16384, 2048, 1, 0.9); }};
}

OpCase LowerBoundCase() {
  return {.op = "lower_bound",
          .run = [](CaseContext& c) -> std::map<std::string, Var> {
            return {{"bound", LowerBound(c.tape(), c.Weight("table"),
                                         static_cast<int64_t>(c.Number("layer")))}};
          },
          .instances =
              [](uint64_t seed) {
                return std::vector<CaseData>{Bound(seed, 2, 1, 1), Bound(seed, 5, 40, 3),
                                             Bound(seed, 3, 7, 0)};
              },
          .bench = [] { return Bound(0, 24, 256, 12); }};
}

}  // namespace lt2
