#include "kernels/qkv_conv.h"

#include "absl/strings/str_cat.h"
#include "kernels/case.h"

namespace lt2 {
namespace {

struct Sizes {
  int64_t rows, length, heads, head_dim, values;
  int64_t width = 4;
};

CaseData Instance(uint64_t seed, const Sizes& n, const std::vector<int64_t>& cu_seqlens) {
  CaseData data{.op = "qkv_conv"};
  data.name = absl::StrCat(n.rows, "x", n.length, " heads ", n.heads, "x", n.head_dim, " values ",
                           n.values, " W ", n.width, " documents ", cu_seqlens.size());
  data.attributes = {{"head_dim", static_cast<double>(n.head_dim)}, {"eps", 1e-6}};
  for (const char* part : {"q", "k", "v"}) {
    const int64_t channels = *part == 'v' ? n.values : n.heads * n.head_dim;
    data.inputs[part] = RandomNormal(seed, part, {n.rows, n.length, channels});
    const std::string w = absl::StrCat("w_", part);
    data.inputs[w] = RandomUniform(seed, w, {channels, n.width}, -0.5, 0.5);
  }
  if (!cu_seqlens.empty()) data.inputs["cu_seqlens"] = IntArray(cu_seqlens);
  return data;
}

std::map<std::string, Var> Run(CaseContext& c) {
  const Documents& documents = c.documents("q");
  const std::array<Var, kQkv> y =
      QkvConv(c.tape(), {c.FlatIn("q"), c.FlatIn("k"), c.FlatIn("v")},
              {&c.Weight("w_q"), &c.Weight("w_k"), &c.Weight("w_v")},
              static_cast<int64_t>(c.Number("head_dim")), c.Number("eps"), documents);
  return {{"q_out", y[0]}, {"k_out", y[1]}, {"v_out", y[2]}};
}

}  // namespace

OpCase QkvConvCase() {
  return {.op = "qkv_conv",
          .run = Run,
          .instances =
              [](uint64_t seed) {
                return std::vector<CaseData>{
                    Instance(seed, {1, 1, 1, 2, 1}, {}),
                    Instance(seed, {2, 70, 3, 24, 40}, {}),
                    Instance(seed, {1, 90, 3, 96, 192}, {0, 1, 3, 35, 37, 90}),
                    Instance(seed, {1, 37, 1, 96, 72}, {0, 4, 37}),
                    Instance(seed, {2, 40, 1, 128, 256}, {}),
                    Instance(seed, {1, 65, 5, 64, 64}, {0, 2, 65}),
                    Instance(seed, {1, 40, 1, 128, 16}, {0, 2, 40}),
                    Instance(seed, {1, 33, 2, 5, 7}, {0, 16, 33}),
                    Instance(seed, {1, 21, 1, 16, 8, 3}, {0, 5, 21})};
              },
          .bench =
              [] {
                return Instance(0, {8, 256, 4, 96, 768}, {});
              },
          .gpu_bench =
              [] {
                return Instance(0, {2, 4096, 16, 96, 3072}, {});
              }};
}

}  // namespace lt2
