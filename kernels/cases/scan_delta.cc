#include "kernels/scan_delta.h"

#include <cmath>

#include "kernels/cases/scan.h"

namespace lt2 {
namespace {

enum class Rule { kDelta, kGated, kChannels };

const char* NameOf(Rule rule) {
  return rule == Rule::kDelta ? "delta_rule" : rule == Rule::kGated ? "gated_delta_rule" : "kda";
}

HostArray Normalised(HostArray x) {
  const int64_t width = x.shape.back();
  for (size_t row = 0; row < x.values.size(); row += width) {
    double sum = 1e-6;
    for (int64_t i = 0; i < width; ++i) sum += x.values[row + i] * x.values[row + i];
    for (int64_t i = 0; i < width; ++i) {
      x.values[row + i] = static_cast<float>(x.values[row + i] / std::sqrt(sum));
    }
  }
  return x;
}

CaseData Instance(uint64_t seed, const ScanCaseSizes& n, Rule rule) {
  const Shape scalars = {n.batch, n.length, n.heads}, channels = {n.batch, n.length, n.heads, n.k};
  CaseData data = ScanCase(NameOf(rule), seed, n);
  for (const char* name : {"q", "k"}) data.inputs[name] = Normalised(data.inputs[name]);
  const bool slow = n.decay == CaseDecay::kSlow;
  data.inputs["beta"] = RandomUniform(seed, "beta", scalars, 0, slow ? 2 : 1);
  if (rule != Rule::kDelta) {
    data.inputs["g"] = LogDecays(seed, rule == Rule::kGated ? scalars : channels, n.decay, 1);
  }
  return data;
}

std::map<std::string, Var> Run(CaseContext& c) {
  ScanDeltaInputs in{.q_NHK = c.FlatIn("q"),
                     .k_NHK = c.FlatIn("k"),
                     .v_NGV = c.FlatIn("v"),
                     .beta_NG = c.FlatIn("beta"),
                     .initial_state_DGKV = {}};
  if (c.Has("g")) {
    const Var g = c.FlatIn("g");
    (g.shape().rank() == 3 ? in.g_NGK : in.g_NG) = g;
  }
  if (c.Has("initial_state")) in.initial_state_DGKV = c.In("initial_state");
  return ScanResults(
      ScanDelta(c.tape(), in, c.Number("scale"), c.documents("q"), c.final_states(), c.link()));
}

OpCase Case(Rule rule) {
  return {.op = NameOf(rule),
          .run = Run,
          .instances =
              [rule](uint64_t seed) {
                std::vector<CaseData> cases =
                    ScanInstances([&](const ScanCaseSizes& n) { return Instance(seed, n, rule); });
                if (rule != Rule::kDelta) {
                  cases.push_back(Instance(seed, {1, 70, 1, 2, 8, 8, {}, CaseDecay::kZero}, rule));
                }
                return cases;
              },
          .bench =
              [rule] {
                return Instance(0, {8, 256, 4, 4, 48, 96}, rule);
              },
          .gpu_bench =
              [rule] {
                return rule == Rule::kChannels ? Instance(0, {4, 4096, 16, 16, 128, 128}, rule)
                                               : Instance(0, {2, 4096, 16, 16, 96, 192}, rule);
              }};
}

}  // namespace

OpCase GatedDeltaRuleCase() { return Case(Rule::kGated); }
OpCase DeltaRuleCase() { return Case(Rule::kDelta); }
OpCase KdaCase() { return Case(Rule::kChannels); }

}  // namespace lt2
