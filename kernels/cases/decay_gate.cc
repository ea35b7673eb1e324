#include "kernels/decay_gate.h"

#include "absl/strings/str_cat.h"
#include "kernels/case.h"

namespace lt2 {
namespace {

CaseData Instance(uint64_t seed, int64_t tokens, int64_t heads, double scale, int64_t per_head = 1,
                  bool with_dt = false) {
  const int64_t channels = heads * per_head;
  return {.op = "decay_gate",
          .name = absl::StrCat(tokens, "x", heads, "x", per_head, " scale ", scale,
                               with_dt ? " with dt" : ""),
          .attributes = {{"with_dt", with_dt ? 1.0 : 0.0}},
          .inputs = {{"a", RandomNormal(seed, "a", {tokens, channels}, scale)},
                     {"A_log", RandomUniform(seed, "A_log", {heads}, -2, 2.7)},
                     {"dt_bias", RandomUniform(seed, "dt_bias", {channels}, -6, 1)}}};
}

}  // namespace

OpCase DecayGateCase() {
  return {.op = "decay_gate",
          .run = [](CaseContext& c) -> std::map<std::string, Var> {
            const Var a = c.In("a");
            Param &A_log = c.Weight("A_log"), &dt_bias = c.Weight("dt_bias");
            if (c.Number("with_dt", 0) == 0) return {{"g", DecayGate(c.tape(), a, A_log, dt_bias)}};
            const StepSizes out = TimeStep(c.tape(), a, A_log, dt_bias);
            return {{"dt", out.dt}, {"g", out.g}};
          },
          .instances =
              [](uint64_t seed) {
                std::vector<CaseData> cases;
                for (bool with_dt : {false, true}) {
                  cases.push_back(Instance(seed, 1, 1, 1, 1, with_dt));
                  cases.push_back(Instance(seed, 77, 3, 20, 1, with_dt));
                  cases.push_back(Instance(seed, 900, 16, 1, 1, with_dt));
                  cases.push_back(Instance(seed, 5, 300, 1, 1, with_dt));
                  cases.push_back(Instance(seed, 130, 3, 2, 20, with_dt));
                }
                return cases;
              },
          .bench = [] { return Instance(0, 2048, 4, 1); },
          .gpu_bench = [] { return Instance(0, 8192, 16, 1, 128); }};
}

}  // namespace lt2
