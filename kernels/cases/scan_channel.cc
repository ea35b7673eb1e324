#include "kernels/scan_channel.h"

#include "kernels/cases/additive.h"

namespace lt2 {
namespace {

CaseData Instance(uint64_t seed, const AdditiveCaseSizes& n) {
  CaseData data = AdditiveCase("gla", seed, n);
  data.inputs["g"] = LogDecays(seed, {n.batch, n.length, n.heads, n.k}, n.decay);
  return data;
}

}  // namespace

OpCase GlaCase() {
  return {.op = "gla",
          .run = [](CaseContext& c) -> std::map<std::string, Var> {
            ScanChannelInputs in{.q_NHK = c.FlatIn("q"),
                                 .k_NHK = c.FlatIn("k"),
                                 .v_NGV = c.FlatIn("v"),
                                 .g_NGK = c.FlatIn("g")};
            if (c.Has("initial_state")) in.initial_state_DGKV = c.In("initial_state");
            const ScanOutputs out = ScanChannel(c.tape(), in, c.Number("scale"), c.documents("q"),
                                                /*want_final_state=*/true);
            return {{"o", out.o_NGV}, {"final_state", out.final_state_DGKV}};
          },
          .instances =
              [](uint64_t seed) {
                std::vector<CaseData> cases;
                for (const AdditiveCaseSizes& n : AdditiveSizesForTests()) {
                  cases.push_back(Instance(seed, n));
                }
                return cases;
              },
          .bench =
              [] {
                return Instance(0, {8, 256, 4, 4, 64, 64});
              }};
}

}  // namespace lt2
