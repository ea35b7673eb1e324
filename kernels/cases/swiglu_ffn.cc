#include "kernels/swiglu_ffn.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/case.h"

namespace lt2 {
namespace {

CaseData Instance(uint64_t seed, int64_t rows, int64_t width, int64_t hidden, int64_t out,
                  bool residual) {
  const auto weight = [&](const char* name, int64_t of, int64_t in) {
    return RandomNormal(seed, name, {of, in}, 1 / std::sqrt(static_cast<double>(in)));
  };
  CaseData data{.op = "swiglu_ffn",
                .name = absl::StrCat(rows, "x", width, " hidden ", hidden, " out ", out,
                                     residual ? " plus" : ""),
                .inputs = {{"x", RandomNormal(seed, "x", {rows, width})},
                           {"w_gate", weight("w_gate", hidden, width)},
                           {"w_up", weight("w_up", hidden, width)},
                           {"w_down", weight("w_down", out, hidden)}}};
  if (residual) data.inputs["residual"] = RandomNormal(seed, "residual", {rows, out});
  return data;
}

}  // namespace

OpCase SwiGluFfnCase() {
  return {.op = "swiglu_ffn",
          .run = [](CaseContext& c) -> std::map<std::string, Var> {
            Var residual;
            if (c.Has("residual")) residual = c.In("residual");
            const Var x = c.In("x");
            return {{"y", SwiGluFfn(c.tape(), x, c.Matrix("w_gate"), c.Matrix("w_up"),
                                    c.Matrix("w_down"), c.Has("residual") ? &residual : nullptr)}};
          },
          .instances = [](uint64_t seed) -> std::vector<CaseData> {
            return {Instance(seed, 1, 1, 1, 1, false), Instance(seed, 77, 33, 45, 30, true),
                    Instance(seed, 5, 40, 16, 40, true), Instance(seed, 300, 72, 136, 72, true),
                    Instance(seed, 129, 64, 200, 24, false)};
          },
          .bench = [] { return Instance(0, 2048, 128, 384, 128, true); },
          .gpu_bench = [] { return Instance(0, 8192, 2048, 5632, 2048, true); }};
}

}  // namespace lt2
