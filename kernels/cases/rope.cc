#include "kernels/rope.h"

#include "absl/strings/str_cat.h"
#include "kernels/case.h"

namespace lt2 {
namespace {

RopeStyle StyleOf(const std::string& name) {
  CHECK(name == "half" || name == "interleaved") << name;
  return name == "half" ? RopeStyle::kHalf : RopeStyle::kInterleaved;
}

// Positions are [T], the same for every row of the batch.
Tensor RepeatedPositions(CaseContext& c, int64_t rows) {
  const Tensor positions_T = c.Ints("positions");
  Tensor positions_N =
      Tensor::Empty({rows * positions_T.size()}, DType::kI32, positions_T.device());
  for (int64_t b = 0; b < rows; ++b) {
    positions_N.Rows(b * positions_T.size(), (b + 1) * positions_T.size()).CopyFrom(positions_T);
  }
  return positions_N;
}

CaseData Instance(uint64_t seed, const Shape& shape_BTHD, int64_t last, const std::string& style) {
  HostArray positions = RandomInts(seed, "positions", {shape_BTHD[1]}, 0, last + 1);
  positions.values[0] = static_cast<double>(last);
  return {.op = "rope",
          .name = absl::StrCat(shape_BTHD.ToString(), " to ", last, " ", style),
          .attributes = {{"theta", 10000.0}, {"style", style}},
          .inputs = {{"x", RandomNormal(seed, "x", shape_BTHD)}, {"positions", positions}}};
}

}  // namespace

OpCase RopeCase() {
  return {.op = "rope",
          .run = [](CaseContext& c) -> std::map<std::string, Var> {
            const int64_t rows = c.In("x").shape()[0];
            return {{"y", Rope(c.tape(), c.FlatIn("x"), RepeatedPositions(c, rows),
                               {.theta = c.Number("theta"), .style = StyleOf(c.Text("style"))})}};
          },
          .instances =
              [](uint64_t seed) {
                return std::vector<CaseData>{Instance(seed, {1, 1, 1, 2}, 3, "half"),
                                             Instance(seed, {2, 19, 3, 32}, 300, "half"),
                                             Instance(seed, {1, 90, 2, 24}, 100000, "interleaved"),
                                             Instance(seed, {3, 70, 2, 64}, 4095, "half")};
              },
          .bench =
              [] {
                return Instance(0, {8, 256, 4, 32}, 255, "half");
              },
          .gpu_bench =
              [] {
                return Instance(0, {4, 4096, 16, 128}, 4095, "half");
              }};
}

}  // namespace lt2
