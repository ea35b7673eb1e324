#include "kernels/short_conv.h"

#include "absl/strings/str_cat.h"
#include "kernels/case.h"

namespace lt2 {
namespace {

CaseData Instance(uint64_t seed, const Shape& x, int64_t width, bool bias, const char* activation,
                  const std::vector<int64_t>& cu_seqlens) {
  CaseData data{.op = "short_conv"};
  data.name = absl::StrCat(x.ToString(), " W ", width, bias ? " bias " : " ", activation,
                           " documents ", cu_seqlens.size());
  data.attributes["activation"] = std::string(activation);
  data.inputs["x"] = RandomNormal(seed, "x", x);
  data.inputs["w"] = RandomUniform(seed, "w", {x.back(), width}, -0.5, 0.5);
  if (bias) data.inputs["bias"] = RandomNormal(seed, "bias", {x.back()});
  if (!cu_seqlens.empty()) data.inputs["cu_seqlens"] = IntArray(cu_seqlens);
  return data;
}

std::map<std::string, Var> Run(CaseContext& c) {
  Param* bias = c.Has("bias") ? &c.Weight("bias") : nullptr;
  return {{"y", ShortConv(c.tape(), c.FlatIn("x"), c.Weight("w"), bias,
                          c.Text("activation") == "silu", c.documents("x"))}};
}

}  // namespace

OpCase ShortConvCase() {
  return {.op = "short_conv",
          .run = Run,
          .instances =
              [](uint64_t seed) {
                return std::vector<CaseData>{
                    Instance(seed, {1, 1, 1}, 4, false, "silu", {}),
                    Instance(seed, {2, 128, 24}, 4, true, "silu", {}),
                    Instance(seed, {1, 200, 37}, 4, true, "none", {0, 1, 3, 66, 130, 200}),
                    Instance(seed, {1, 130, 16}, 2, false, "silu", {0, 64, 65, 130}),
                    Instance(seed, {3, 5, 7}, 9, false, "silu", {})};
              },
          .bench =
              [] {
                return Instance(0, {8, 256, 96}, 4, false, "silu", {});
              },
          .gpu_bench =
              [] {
                return Instance(0, {2, 4096, 6144}, 4, false, "silu", {});
              }};
}

}  // namespace lt2
