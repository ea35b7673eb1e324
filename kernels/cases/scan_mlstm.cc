#include "kernels/scan_mlstm.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/case.h"

namespace lt2 {
namespace {

// kSlow: hardly any forgetting; kMixed: nothing or everything forgotten, small and huge inputs.
enum class Gates { kOrdinary, kSlow, kMixed };

struct Sizes {
  int64_t batch, length, heads, k, v;
  std::vector<int64_t> cu_seqlens = {};  // documents, where they are not the rows
  Gates gates = Gates::kOrdinary;
  bool initial_state = false;
};

// One sign a token, so that the normaliser does not cancel.
HostArray OneSign(HostArray x, bool random_sign) {
  const int64_t width = x.shape.back();
  for (size_t row = 0; row < x.values.size(); row += width) {
    const double sign = random_sign && x.values[row] < 0 ? -1 : 1;
    for (int64_t i = 0; i < width; ++i) x.values[row + i] = sign * std::abs(x.values[row + i]);
  }
  return x;
}

HostArray Affine(HostArray x, double factor, double offset) {
  for (double& value : x.values) value = static_cast<float>(factor * value + offset);
  return x;
}

CaseData Instance(uint64_t seed, const Sizes& n) {
  const Shape gates = {n.batch, n.length, n.heads}, keys = {n.batch, n.length, n.heads, n.k};
  CaseData data{.op = "mlstm", .attributes = {{"scale", 1 / std::sqrt(static_cast<double>(n.k))}}};
  data.name = absl::StrCat(n.batch, "x", n.length, " heads ", n.heads, " K ", n.k, " V ", n.v,
                           " documents ", n.cu_seqlens.size(), " gates ", static_cast<int>(n.gates),
                           n.initial_state ? " state" : "");
  data.inputs["q"] = OneSign(RandomNormal(seed, "q", keys), true);
  data.inputs["k"] = OneSign(RandomNormal(seed, "k", keys), false);
  data.inputs["v"] = RandomNormal(seed, "v", {n.batch, n.length, n.heads, n.v});
  data.inputs["i"] = Affine(RandomNormal(seed, "i", gates), 2, -4);
  data.inputs["f"] = Affine(RandomNormal(seed, "f", gates), 1, n.gates == Gates::kSlow ? 8 : 3);
  if (n.gates == Gates::kMixed) {
    for (double& i : data.inputs["i"].values) i *= 5;
    for (double& f : data.inputs["f"].values) f = f > 3 ? 5 : -30;
  }
  if (!n.cu_seqlens.empty()) data.inputs["cu_seqlens"] = IntArray(n.cu_seqlens);
  if (n.initial_state) {
    const auto documents =
        n.cu_seqlens.empty() ? n.batch : static_cast<int64_t>(n.cu_seqlens.size()) - 1;
    data.inputs["initial_state"] = OneSign(
        RandomNormal(seed, "initial_state", {documents, n.heads, n.k, n.v + 1}, 0.3), false);
    data.inputs["initial_max"] = RandomNormal(seed, "initial_max", {documents, n.heads});
  }
  return data;
}

std::map<std::string, Var> Run(CaseContext& c) {
  ScanMlstmInputs in{.q_NHK = c.FlatIn("q"),
                     .k_NHK = c.FlatIn("k"),
                     .v_NHV = c.FlatIn("v"),
                     .i_NH = c.FlatIn("i"),
                     .f_NH = c.FlatIn("f"),
                     .initial_state_DHKW = {}};
  if (c.Has("initial_state")) {
    in.initial_state_DHKW = c.In("initial_state");
    in.initial_max_DH = c.Value("initial_max");
  }
  return {{"o", ScanMlstm(c.tape(), in, c.Number("scale"), c.documents("q"), FinalStates::kNone,
                          c.link())
                    .o_NHV}};
}

}  // namespace

OpCase MlstmCase() {
  return {.op = "mlstm",
          .run = Run,
          .instances =
              [](uint64_t seed) {
                return std::vector<CaseData>{
                    Instance(seed, {1, 1, 1, 1, 1}),
                    Instance(seed, {2, 64, 2, 16, 16, {}, Gates::kOrdinary, true}),
                    Instance(seed, {1, 140, 3, 12, 20, {0, 1, 65, 66, 140}, Gates::kSlow, true}),
                    Instance(seed, {3, 77, 1, 33, 7, {}, Gates::kMixed}),
                    Instance(seed, {1, 75, 1, 48, 95, {0, 66, 75}, Gates::kMixed, true})};
              },
          .bench =
              [] {
                return Instance(0, {8, 256, 4, 32, 64});
              },
          .gpu_bench =
              [] {
                return Instance(0, {2, 4096, 8, 128, 256});
              }};
}

}  // namespace lt2
