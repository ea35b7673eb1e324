#include "kernels/exit_loss.h"

#include "absl/strings/str_cat.h"
#include "kernels/case.h"

namespace lt2 {
namespace {

CaseData Instance(uint64_t seed, int64_t tokens, int loops, double gate_size) {
  CaseData data{.op = "exit_loss",
                .name = absl::StrCat("n", tokens, " loops ", loops, " gates ", gate_size),
                .attributes = {{"loops", double(loops)}}};
  HostArray targets = RandomInts(seed, "target", {tokens}, 0, 100);
  for (int64_t i = 1; i < tokens; i += 5) targets.values[i] = -100;
  data.inputs["target"] = targets;
  for (int t = 0; t < loops; ++t) {
    const auto name = [t](const char* what) { return absl::StrCat(what, t); };
    if (t + 1 < loops) {
      data.inputs[name("gate")] = RandomNormal(seed, name("gate"), {tokens, 1}, gate_size);
    }
    data.inputs[name("loss")] = RandomUniform(seed, name("loss"), {tokens}, 0, 4);
    data.inputs[name("lse")] = RandomNormal(seed, name("lse"), {tokens}, 2);
  }
  return data;
}

}  // namespace

OpCase ExitLossCase() {
  return {.op = "exit_loss",
          .run = [](CaseContext& c) -> std::map<std::string, Var> {
            std::vector<Var> gates;
            std::vector<TokenLosses> losses;
            const int loops = static_cast<int>(c.Number("loops"));
            for (int t = 0; t < loops; ++t) {
              if (t + 1 < loops) gates.push_back(c.In(absl::StrCat("gate", t)));
              losses.push_back({c.In(absl::StrCat("loss", t)), c.In(absl::StrCat("lse", t))});
            }
            return {{"sums", ExitLoss(c.tape(), gates, losses, c.Ints("target"))}};
          },
          .instances =
              [](uint64_t seed) {
                return std::vector<CaseData>{Instance(seed, 1, 1, 1), Instance(seed, 40, 2, 1),
                                             Instance(seed, 700, 4, 2), Instance(seed, 33, 7, 6)};
              },
          .bench = [] { return Instance(0, 8192, 4, 1); },
          .gpu_bench = [] { return Instance(0, 1 << 20, 4, 1); }};
}

}  // namespace lt2
