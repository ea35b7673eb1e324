#include "kernels/scan_additive.h"

#include "kernels/cases/scan.h"

namespace lt2 {
namespace {

std::map<std::string, Var> Run(CaseContext& c) {
  ScanAdditiveInputs in{.q_NHK = c.FlatIn("q"), .k_NHK = c.FlatIn("k"), .v_NGV = c.FlatIn("v")};
  if (c.Has("g")) {
    const Var g = c.FlatIn("g");
    (g.shape().rank() == 3 ? in.g_NGK : in.g_NG) = g;
  }
  if (c.Has("log_gamma")) in.log_gamma_G = c.Value("log_gamma");
  if (c.Has("initial_state")) in.initial_state_DGKV = c.In("initial_state");
  return ScanResults(
      ScanAdditive(c.tape(), in, c.Number("scale"), c.documents("q"), c.final_states(), c.link()));
}

CaseData Instance(const std::string& op, uint64_t seed, const ScanCaseSizes& n) {
  CaseData data = ScanCase(op, seed, n);
  if (op == "retention") data.inputs["log_gamma"] = LogDecays(seed, {n.heads}, n.decay, 2);
  if (op == "simple_gla") {
    data.inputs["g"] = LogDecays(seed, {n.batch, n.length, n.heads}, n.decay, 2);
  }
  if (op == "gla") {
    data.inputs["g"] = LogDecays(seed, {n.batch, n.length, n.heads, n.k}, n.decay, 2);
  }
  return data;
}

OpCase Case(const char* op) {
  return {.op = op,
          .run = Run,
          .instances =
              [op](uint64_t seed) {
                return ScanInstances([&](const ScanCaseSizes& n) { return Instance(op, seed, n); });
              },
          .bench =
              [op] {
                return Instance(op, 0, {8, 256, 4, 4, 64, 64});
              },
          .gpu_bench =
              [op] {
                return Instance(op, 0, {2, 4096, 16, 16, 128, 128});
              }};
}

}  // namespace

OpCase LinearAttentionCase() { return Case("linear_attention"); }
OpCase RetentionCase() { return Case("retention"); }
OpCase SimpleGlaCase() { return Case("simple_gla"); }
OpCase GlaCase() { return Case("gla"); }

}  // namespace lt2
