#include "kernels/scan_scalar.h"

#include "kernels/cases/additive.h"

namespace lt2 {
namespace {

std::map<std::string, Var> Run(CaseContext& c) {
  ScanScalarInputs in{
      .q_NHK = c.FlatIn("q"), .k_NHK = c.FlatIn("k"), .v_NGV = c.FlatIn("v"), .g_NG = {}};
  if (c.Has("g")) in.g_NG = c.FlatIn("g");
  if (c.Has("log_gamma")) in.log_gamma_G = c.Value("log_gamma");
  if (c.Has("initial_state")) in.initial_state_DGKV = c.In("initial_state");
  const ScanOutputs out = ScanScalar(c.tape(), in, c.Number("scale"), c.documents("q"),
                                     /*want_final_state=*/true);
  return {{"o", out.o_NGV}, {"final_state", out.final_state_DGKV}};
}

CaseData Instance(const std::string& op, uint64_t seed, const AdditiveCaseSizes& n) {
  CaseData data = AdditiveCase(op, seed, n);
  if (op == "simple_gla") {
    data.inputs["g"] = LogDecays(seed, {n.batch, n.length, n.heads}, n.decay);
  }
  if (op == "retention") data.inputs["log_gamma"] = LogDecays(seed, {n.heads}, n.decay);
  return data;
}

OpCase Case(const char* op) {
  return {.op = op,
          .run = Run,
          .instances =
              [op](uint64_t seed) {
                std::vector<CaseData> cases;
                for (const AdditiveCaseSizes& n : AdditiveSizesForTests()) {
                  cases.push_back(Instance(op, seed, n));
                }
                return cases;
              },
          .bench =
              [op] {
                return Instance(op, 0, {8, 256, 4, 4, 64, 64});
              }};
}

}  // namespace

OpCase LinearAttentionCase() { return Case("linear_attention"); }
OpCase RetentionCase() { return Case("retention"); }
OpCase SimpleGlaCase() { return Case("simple_gla"); }

}  // namespace lt2
