#include "kernels/embedding.h"

#include "absl/strings/str_cat.h"
#include "kernels/case.h"

namespace lt2 {
namespace {

// Rows [first, last) of the vocabulary are held.
CaseData Instance(uint64_t seed, int64_t tokens, int64_t vocabulary, int64_t width, int64_t first,
                  int64_t last) {
  return {.op = "embedding",
          .name = absl::StrCat(tokens, "of", vocabulary, "x", width, " rows ", first, " to ", last),
          .attributes = {{"first", double(first)}, {"last", double(last)}},
          .inputs = {{"ids", RandomInts(seed, "ids", {tokens}, 0, vocabulary)},
                     {"w", RandomNormal(seed, "w", {vocabulary, width})}}};
}

CaseData Instance(uint64_t seed, int64_t tokens, int64_t vocabulary, int64_t width) {
  return Instance(seed, tokens, vocabulary, width, 0, vocabulary);
}

}  // namespace

OpCase EmbeddingCase() {
  return {.op = "embedding",
          .run = [](CaseContext& c) -> std::map<std::string, Var> {
            const auto first = static_cast<int64_t>(c.Number("first", 0));
            const auto last = static_cast<int64_t>(c.Number("last", 0));
            Param& w = last > 0 ? c.Part("w", first, last) : c.Matrix("w");
            return {{"y", Embedding(c.tape(), c.Ints("ids"), w)}};
          },
          .instances =
              [](uint64_t seed) {
                return std::vector<CaseData>{Instance(seed, 1, 1, 1), Instance(seed, 50, 7, 24),
                                             Instance(seed, 700, 300, 33),
                                             Instance(seed, 50, 7, 24, 0, 3),
                                             Instance(seed, 700, 300, 33, 201, 300)};
              },
          .bench = [] { return Instance(0, 2048, 256, 128); },
          .gpu_bench = [] { return Instance(0, 16384, 32768, 2048); }};
}

}  // namespace lt2
