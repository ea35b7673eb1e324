#include "kernels/add.h"

#include "kernels/case.h"

namespace lt2 {
namespace {

CaseData Instance(uint64_t seed, const Shape& shape) {
  return {.op = "add",
          .name = shape.ToString(),
          .inputs = {{"a", RandomNormal(seed, "a", shape)}, {"b", RandomNormal(seed, "b", shape)}}};
}

}  // namespace

OpCase AddCase() {
  return {.op = "add",
          .run = [](CaseContext& c) -> std::map<std::string, Var> {
            return {{"y", Add(c.tape(), c.In("a"), c.In("b"))}};
          },
          .instances =
              [](uint64_t seed) {
                return std::vector<CaseData>{Instance(seed, {1}), Instance(seed, {250, 131})};
              },
          .bench =
              [] {
                return Instance(0, {2048, 256});
              },
          .gpu_bench =
              [] {
                return Instance(0, {8192, 2048});
              }};
}

}  // namespace lt2
