#include "kernels/branch_gate.h"

#include "absl/strings/str_cat.h"
#include "kernels/case.h"

namespace lt2 {
namespace {

CaseData Instance(uint64_t seed, const Shape& shape) {
  return {.op = "branch_gate",
          .name = absl::StrCat("n", shape[0], "h", shape[1], "e", shape[2]),
          .inputs = {{"compressed", RandomNormal(seed, "compressed", shape)},
                     {"selected", RandomNormal(seed, "selected", shape)},
                     {"window", RandomNormal(seed, "window", shape)},
                     {"gates", RandomNormal(seed, "gates", {shape[0], shape[1], kBranches}, 3)}}};
}

}  // namespace

OpCase BranchGateCase() {
  return {
      .op = "branch_gate",
      .run = [](CaseContext& c) -> std::map<std::string, Var> {
        return {{"o", BranchGate(c.tape(), {c.In("compressed"), c.In("selected"), c.In("window")},
                                 c.In("gates"))}};
      },
      .instances =
          [](uint64_t seed) {
            return std::vector<CaseData>{Instance(seed, {70, 4, 16}), Instance(seed, {131, 3, 7}),
                                         Instance(seed, {1, 1, 1})};
          },
      .bench =
          [] {
            return Instance(0, {2048, 32, 32});
          },
      .gpu_bench =
          [] {
            return Instance(0, {8192, 16, 128});
          }};
}

}  // namespace lt2
