#include "kernels/soft_cap.h"

#include "absl/strings/str_cat.h"
#include "kernels/case.h"

namespace lt2 {
namespace {

CaseData Instance(uint64_t seed, int64_t tokens, int64_t heads, double cap, double size) {
  return {.op = "soft_cap",
          .name = absl::StrCat(tokens, "x", heads, " cap ", cap, " size ", size),
          .attributes = {{"cap", cap}},
          .inputs = {{"x", RandomNormal(seed, "x", {tokens, heads}, size)},
                     {"b", RandomNormal(seed, "b", {heads}, size)}}};
}

}  // namespace

OpCase SoftCapCase() {
  return {.op = "soft_cap",
          .run = [](CaseContext& c) -> std::map<std::string, Var> {
            return {{"y", SoftCap(c.tape(), c.In("x"), c.Weight("b"), c.Number("cap"))}};
          },
          .instances =
              [](uint64_t seed) {
                return std::vector<CaseData>{Instance(seed, 1, 1, 15, 4),
                                             Instance(seed, 77, 3, 15, 30),
                                             Instance(seed, 2000, 9, 2, 0.01)};
              },
          .bench = [] { return Instance(0, 2048, 4, 15, 4); },
          .gpu_bench = [] { return Instance(0, 1 << 20, 16, 15, 4); }};
}

}  // namespace lt2
