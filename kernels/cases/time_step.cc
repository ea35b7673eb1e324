#include "kernels/time_step.h"

#include "absl/strings/str_cat.h"
#include "kernels/case.h"

namespace lt2 {
namespace {

CaseData Instance(uint64_t seed, int64_t tokens, int64_t heads, double scale) {
  return {.op = "time_step",
          .name = absl::StrCat(tokens, "x", heads, " scale ", scale),
          .inputs = {{"a", RandomNormal(seed, "a", {tokens, heads}, scale)},
                     {"A_log", RandomUniform(seed, "A_log", {heads}, -2, 2.7)},
                     {"dt_bias", RandomUniform(seed, "dt_bias", {heads}, -6, 1)}}};
}

}  // namespace

OpCase TimeStepCase() {
  return {.op = "time_step",
          .run = [](CaseContext& c) -> std::map<std::string, Var> {
            const StepSizes out =
                TimeStep(c.tape(), c.In("a"), c.Weight("A_log"), c.Weight("dt_bias"));
            return {{"dt", out.dt}, {"g", out.g}};
          },
          .instances =
              [](uint64_t seed) {
                return std::vector<CaseData>{Instance(seed, 1, 1, 1), Instance(seed, 77, 3, 20),
                                             Instance(seed, 900, 16, 1), Instance(seed, 5, 300, 1)};
              },
          .bench = [] { return Instance(0, 2048, 8, 1); }};
}

}  // namespace lt2
