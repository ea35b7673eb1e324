#include "kernels/linear.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/case.h"

namespace lt2 {
namespace {

CaseData Instance(uint64_t seed, int64_t rows, int64_t in, int64_t out) {
  return {.op = "linear",
          .name = absl::StrCat(rows, "x", in, "x", out),
          .inputs = {{"x", RandomNormal(seed, "x", {rows, in})},
                     {"w", RandomNormal(seed, "w", {out, in}, 1.0 / std::sqrt(double(in)))}}};
}

std::vector<CaseData> Instances(uint64_t seed) {
  return {Instance(seed, 1, 1, 1), Instance(seed, 77, 33, 131), Instance(seed, 1100, 37, 48),
          Instance(seed, 5, 64, 1030)};
}

}  // namespace

OpCase LinearCase() {
  return {.op = "linear",
          .run = [](CaseContext& c) -> std::map<std::string, Var> {
            return {{"y", Linear(c.tape(), c.In("x"), c.Matrix("w"))}};
          },
          .instances = Instances,
          .bench = [] { return Instance(0, 2048, 128, 384); },
          .gpu_bench = [] { return Instance(0, 8192, 2048, 5632); }};
}

OpCase LinearPlusCase() {
  const auto plus = [](CaseData data) {
    data.op = "linear_plus";
    const Shape shape = {data.inputs.at("x").shape[0], data.inputs.at("w").shape[0]};
    data.inputs["residual"] = RandomNormal(0, data.name, shape);
    return data;
  };
  return {.op = "linear_plus",
          .run = [](CaseContext& c) -> std::map<std::string, Var> {
            return {{"y", LinearPlus(c.tape(), c.In("residual"), c.In("x"), c.Matrix("w"))}};
          },
          .instances =
              [plus](uint64_t seed) {
                std::vector<CaseData> all;
                for (CaseData& data : Instances(seed)) all.push_back(plus(std::move(data)));
                return all;
              },
          .bench = [plus] { return plus(Instance(0, 2048, 384, 128)); },
          .gpu_bench = [plus] { return plus(Instance(0, 8192, 5632, 2048)); }};
}

}  // namespace lt2
