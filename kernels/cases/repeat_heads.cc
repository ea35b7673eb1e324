#include "kernels/repeat_heads.h"

#include "absl/strings/str_cat.h"
#include "kernels/case.h"

namespace lt2 {
namespace {

CaseData Instance(uint64_t seed, const Shape& shape, int64_t copies) {
  return {.op = "repeat_heads",
          .name = absl::StrCat(shape.ToString(), " times ", copies),
          .attributes = {{"heads", static_cast<double>(copies * shape[1])}},
          .inputs = {{"x", RandomNormal(seed, "x", shape)}}};
}

}  // namespace

OpCase RepeatHeadsCase() {
  return {
      .op = "repeat_heads",
      .run = [](CaseContext& c) -> std::map<std::string, Var> {
        return {{"y", RepeatHeads(c.tape(), c.In("x"), static_cast<int64_t>(c.Number("heads")))}};
      },
      .instances =
          [](uint64_t seed) {
            return std::vector<CaseData>{Instance(seed, {1, 1, 1}, 2),
                                         Instance(seed, {70, 3, 17}, 4),
                                         Instance(seed, {300, 1, 33}, 3)};
          },
      .bench =
          [] {
            return Instance(0, {2048, 2, 64}, 4);
          },
      .gpu_bench =
          [] {
            return Instance(0, {16384, 4, 128}, 4);
          }};
}

}  // namespace lt2
