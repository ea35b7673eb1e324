#include "kernels/kl_divergence.h"

#include "absl/strings/str_cat.h"
#include "kernels/case.h"

namespace lt2 {
namespace {

CaseData Instance(uint64_t seed, int64_t rows, int64_t vocab, double temperature, double size) {
  return {.op = "kl_divergence",
          .name = absl::StrCat(rows, "x", vocab, " temperature ", temperature, " size ", size),
          .attributes = {{"temperature", temperature}},
          .inputs = {{"student", RandomNormal(seed, "student", {rows, vocab}, size)},
                     {"teacher", RandomNormal(seed, "teacher", {rows, vocab}, size)}}};
}

}  // namespace

OpCase KlDivergenceCase() {
  return {.op = "kl_divergence",
          .run = [](CaseContext& c) -> std::map<std::string, Var> {
            const Var student = c.In("student");
            const double mean = 1 / static_cast<double>(student.value.dim(0));
            return {{"loss", KlDivergence(c.tape(), student, c.Value("teacher"),
                                          c.Number("temperature"), mean)}};
          },
          .instances =
              [](uint64_t seed) {
                return std::vector<CaseData>{
                    Instance(seed, 1, 1, 1, 1), Instance(seed, 33, 97, 1, 1),
                    Instance(seed, 70, 130, 2, 4), Instance(seed, 9, 4100, 0.5, 2)};
              },
          .bench = [] { return Instance(0, 2048, 256, 1, 1); },
          .gpu_bench = [] { return Instance(0, 512, 65536, 1, 1); }};
}

}  // namespace lt2
