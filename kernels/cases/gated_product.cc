#include "kernels/gated_product.h"

#include "absl/strings/str_cat.h"
#include "kernels/case.h"

namespace lt2 {
namespace {

CaseData Instance(const char* op, const char* x, uint64_t seed, const Shape& shape,
                  double gate_scale) {
  return {.op = op,
          .name = absl::StrCat(shape.ToString(), " gate scale ", gate_scale),
          .inputs = {{x, RandomNormal(seed, x, shape)},
                     {"gate", RandomNormal(seed, "gate", shape, gate_scale)}}};
}

std::vector<CaseData> Instances(const char* op, const char* x, uint64_t seed) {
  return {Instance(op, x, seed, {1, 1}, 1), Instance(op, x, seed, {2, 3, 40}, 3),
          Instance(op, x, seed, {211, 97}, 30)};
}

}  // namespace

OpCase SwiGluCase() {
  return {.op = "swiglu",
          .run = [](CaseContext& c) -> std::map<std::string, Var> {
            return {{"y", SwiGlu(c.tape(), c.In("gate"), c.In("up"))}};
          },
          .instances = [](uint64_t seed) { return Instances("swiglu", "up", seed); },
          .bench =
              [] {
                return Instance("swiglu", "up", 0, {2048, 512}, 1);
              },
          .gpu_bench =
              [] {
                return Instance("swiglu", "up", 0, {8192, 5632}, 1);
              }};
}

OpCase SigmoidGateCase() {
  return {.op = "sigmoid_gate",
          .run = [](CaseContext& c) -> std::map<std::string, Var> {
            return {{"y", SigmoidGate(c.tape(), c.In("x"), c.In("gate"))}};
          },
          .instances = [](uint64_t seed) { return Instances("sigmoid_gate", "x", seed); },
          .bench =
              [] {
                return Instance("sigmoid_gate", "x", 0, {2048, 256}, 1);
              },
          .gpu_bench =
              [] {
                return Instance("sigmoid_gate", "x", 0, {8192, 2048}, 1);
              }};
}

OpCase ProductCase() {
  return {.op = "product",
          .run = [](CaseContext& c) -> std::map<std::string, Var> {
            return {{"y", Product(c.tape(), c.In("x"), c.In("gate"))}};
          },
          .instances = [](uint64_t seed) { return Instances("product", "x", seed); },
          .bench =
              [] {
                return Instance("product", "x", 0, {2048, 256}, 1);
              },
          .gpu_bench =
              [] {
                return Instance("product", "x", 0, {8192, 2048}, 1);
              }};
}

}  // namespace lt2
