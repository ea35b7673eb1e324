#include "kernels/narrow_linear.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/case.h"

namespace lt2 {
namespace {

CaseData Instance(uint64_t seed, int64_t rows, int64_t in, const std::vector<int64_t>& out) {
  CaseData data{.op = "narrow_linear",
                .name = absl::StrCat(rows, "x", in),
                .inputs = {{"x", RandomNormal(seed, "x", {rows, in})}}};
  for (size_t i = 0; i < out.size(); ++i) {
    absl::StrAppend(&data.name, "x", out[i]);
    const std::string w = absl::StrCat("w_", i);
    data.inputs[w] = RandomNormal(seed, w, {out[i], in}, 1.0 / std::sqrt(double(in)));
  }
  return data;
}

std::map<std::string, Var> Run(CaseContext& c) {
  std::vector<Param*> w;
  for (size_t i = 0; c.Has(absl::StrCat("w_", i)); ++i) {
    w.push_back(&c.Matrix(absl::StrCat("w_", i)));
  }
  const std::vector<Var> y = NarrowLinear(c.tape(), c.In("x"), w);
  std::map<std::string, Var> out;
  for (size_t i = 0; i < y.size(); ++i) out[absl::StrCat("y_", i)] = y[i];
  return out;
}

}  // namespace

OpCase NarrowLinearCase() {
  return {.op = "narrow_linear",
          .run = Run,
          .instances =
              [](uint64_t seed) {
                return std::vector<CaseData>{Instance(seed, 1, 1, {1}),
                                             Instance(seed, 77, 33, {3, 5}),
                                             Instance(seed, 70, 72, {16, 16}),
                                             Instance(seed, 1, 200, {1, 3, 8}),
                                             Instance(seed, 333, 136, {33, 7, 8}),
                                             Instance(seed, 1029, 520, {4, 4}),
                                             Instance(seed, 40, 24, {65, 2}),
                                             Instance(seed, 4333, 512, {2}),
                                             Instance(seed, 61, 1024, {3, 5, 9}),
                                             Instance(seed, 150, 72, {8}),
                                             Instance(seed, 301, 328, {40, 16}),
                                             Instance(seed, 9, 2048, {16, 16}),
                                             Instance(seed, 43001, 8, {8, 16})};
              },
          .bench =
              [] {
                return Instance(0, 2048, 128, {4, 4});
              },
          .gpu_bench =
              [] {
                return Instance(0, 16384, 2048, {16, 16});
              }};
}

}  // namespace lt2
