#include "kernels/embedding.h"

#include "absl/strings/str_cat.h"
#include "kernels/case.h"

namespace lt2 {
namespace {

CaseData Instance(uint64_t seed, int64_t tokens, int64_t vocabulary, int64_t width) {
  return {.op = "embedding",
          .name = absl::StrCat(tokens, "of", vocabulary, "x", width),
          .inputs = {{"ids", RandomInts(seed, "ids", {tokens}, 0, vocabulary)},
                     {"w", RandomNormal(seed, "w", {vocabulary, width})}}};
}

}  // namespace

OpCase EmbeddingCase() {
  return {.op = "embedding",
          .run = [](CaseContext& c) -> std::map<std::string, Var> {
            return {{"y", Embedding(c.tape(), c.Ints("ids"), c.Matrix("w"))}};
          },
          .instances =
              [](uint64_t seed) {
                return std::vector<CaseData>{Instance(seed, 1, 1, 1), Instance(seed, 50, 7, 24),
                                             Instance(seed, 700, 300, 33)};
              },
          .bench = [] { return Instance(0, 2048, 256, 128); },
          .gpu_bench = [] { return Instance(0, 16384, 32768, 2048); }};
}

}  // namespace lt2
