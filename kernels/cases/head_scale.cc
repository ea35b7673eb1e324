#include "kernels/head_scale.h"

#include "absl/strings/str_cat.h"
#include "kernels/case.h"

namespace lt2 {
namespace {

CaseData Instance(const std::string& op, uint64_t seed, const Shape& shape) {
  CaseData data{
      .op = op, .name = shape.ToString(), .inputs = {{"x", RandomNormal(seed, "x", shape)}}};
  if (op == "head_skip") {
    data.inputs["o"] = RandomNormal(seed, "o", shape);
    data.inputs["s"] = RandomNormal(seed, "s", {shape[1]});
  } else {
    data.inputs["s"] = RandomNormal(seed, "s", {shape[0], shape[1]});
  }
  return data;
}

OpCase Case(const char* op, Var (*apply)(CaseContext& c)) {
  return {.op = op,
          .run = [apply](CaseContext& c) -> std::map<std::string, Var> {
            return {{"y", apply(c)}};
          },
          .instances =
              [op](uint64_t seed) {
                return std::vector<CaseData>{Instance(op, seed, {1, 1, 1}),
                                             Instance(op, seed, {1, 5, 40}),
                                             Instance(op, seed, {300, 3, 33})};
              },
          .bench =
              [op] {
                return Instance(op, 0, {2048, 8, 64});
              },
          .gpu_bench =
              [op] {
                return Instance(op, 0, {16384, 32, 64});
              }};
}

}  // namespace

OpCase HeadScaleCase() {
  return Case("head_scale",
              [](CaseContext& c) { return HeadScale(c.tape(), c.In("x"), c.In("s")); });
}
OpCase HeadSkipCase() {
  return Case("head_skip", [](CaseContext& c) {
    return HeadSkip(c.tape(), c.In("o"), c.In("x"), c.Weight("s"));
  });
}

}  // namespace lt2
