#include "kernels/ssd.h"

#include "kernels/cases/scan.h"

namespace lt2 {
namespace {

// n.key_heads groups, n.heads heads of width n.v.
CaseData Instance(uint64_t seed, const ScanCaseSizes& n) {
  CaseData data = ScanCase("ssd", seed, n);
  data.attributes.clear();
  data.inputs["B"] = data.inputs.extract("k").mapped();
  data.inputs["C"] = data.inputs.extract("q").mapped();
  data.inputs["x"] = data.inputs.extract("v").mapped();
  data.inputs["dt"] = RandomNormal(seed, "dt", {n.batch, n.length, n.heads}, 2);
  data.inputs["A_log"] = RandomUniform(seed, "A_log", {n.heads}, -3, 2.7);
  data.inputs["dt_bias"] = RandomNormal(seed, "dt_bias", {n.heads});
  data.inputs["D"] = RandomNormal(seed, "D", {n.heads});
  return data;
}

std::map<std::string, Var> Run(CaseContext& c) {
  SsdInputs in{.x_NHP = c.FlatIn("x"),
               .a_NH = c.FlatIn("dt"),
               .B_NGK = c.FlatIn("B"),
               .C_NGK = c.FlatIn("C")};
  if (c.Has("initial_state")) in.initial_state_DHKP = c.In("initial_state");
  const SsdParams params{
      .A_log_H = c.Weight("A_log"), .D_H = c.Weight("D"), .dt_bias_H = c.Weight("dt_bias")};
  return ScanResults(Ssd(c.tape(), in, params, c.documents("x"), c.final_states(), c.link()));
}

}  // namespace

OpCase SsdCase() {
  return {.op = "ssd",
          .run = Run,
          .instances =
              [](uint64_t seed) {
                return ScanInstances([&](const ScanCaseSizes& n) { return Instance(seed, n); });
              },
          .bench =
              [] {
                return Instance(0, {8, 256, 1, 8, 64, 64});
              },
          .gpu_bench =
              [] {
                return Instance(0, {2, 4096, 1, 32, 128, 64});
              }};
}

}  // namespace lt2
