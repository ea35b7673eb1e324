#include "kernels/activation.h"

#include "absl/strings/str_cat.h"
#include "kernels/case.h"

namespace lt2 {
namespace {

CaseData Instance(const char* op, uint64_t seed, const Shape& shape, double scale) {
  return {.op = op,
          .name = absl::StrCat(shape.ToString(), " scale ", scale),
          .inputs = {{"x", RandomNormal(seed, "x", shape, scale)}}};
}

OpCase Case(const char* op, Var (*apply)(Tape&, Var)) {
  return {.op = op,
          .run = [apply](CaseContext& c) -> std::map<std::string, Var> {
            return {{"y", apply(c.tape(), c.In("x"))}};
          },
          .instances =
              [op](uint64_t seed) {
                return std::vector<CaseData>{Instance(op, seed, {1, 1}, 1),
                                             Instance(op, seed, {2, 3, 40}, 3),
                                             Instance(op, seed, {211, 97}, 30)};
              },
          .bench =
              [op] {
                return Instance(op, 0, {2048, 256}, 1);
              },
          .gpu_bench =
              [op] {
                return Instance(op, 0, {16384, 2048}, 1);
              }};
}

}  // namespace

OpCase EluPlusOneCase() { return Case("elu_plus_one", EluPlusOne); }
OpCase SiluCase() { return Case("silu", Silu); }
OpCase LogSigmoidCase() {
  return Case("log_sigmoid", [](Tape& tape, Var x) { return LogSigmoid(tape, x, 1.0 / 16); });
}

}  // namespace lt2
