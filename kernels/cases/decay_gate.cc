#include "kernels/decay_gate.h"

#include "absl/strings/str_cat.h"
#include "kernels/case.h"

namespace lt2 {
namespace {

CaseData Instance(uint64_t seed, int64_t tokens, int64_t heads, double scale,
                  int64_t per_head = 1) {
  const int64_t channels = heads * per_head;
  return {.op = "decay_gate",
          .name = absl::StrCat(tokens, "x", heads, "x", per_head, " scale ", scale),
          .inputs = {{"a", RandomNormal(seed, "a", {tokens, channels}, scale)},
                     {"A_log", RandomUniform(seed, "A_log", {heads}, -2, 2.7)},
                     {"dt_bias", RandomUniform(seed, "dt_bias", {channels}, -6, 1)}}};
}

}  // namespace

OpCase DecayGateCase() {
  return {.op = "decay_gate",
          .run = [](CaseContext& c) -> std::map<std::string, Var> {
            return {{"g", DecayGate(c.tape(), c.In("a"), c.Weight("A_log"), c.Weight("dt_bias"))}};
          },
          .instances =
              [](uint64_t seed) {
                return std::vector<CaseData>{Instance(seed, 1, 1, 1), Instance(seed, 77, 3, 20),
                                             Instance(seed, 900, 16, 1), Instance(seed, 5, 300, 1),
                                             Instance(seed, 130, 3, 2, 20)};
              },
          .bench = [] { return Instance(0, 2048, 4, 1); }};
}

}  // namespace lt2
