#include "kernels/scan_delta.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/case.h"

namespace lt2 {
namespace {

enum class Decay { kNone, kOrdinary, kSlow, kMixed };  // kMixed: nothing, or -30, token by token

struct Sizes {
  int64_t batch, length, key_heads, heads, k, v;
  std::vector<int64_t> cu_seqlens = {};  // documents, where they are not the rows
  Decay decay = Decay::kOrdinary;
  bool initial_state = false;
};

HostArray Normalised(HostArray x) {
  const int64_t width = x.shape.back();
  for (size_t row = 0; row < x.values.size(); row += width) {
    double sum = 1e-6;
    for (int64_t i = 0; i < width; ++i) sum += x.values[row + i] * x.values[row + i];
    for (int64_t i = 0; i < width; ++i) {
      x.values[row + i] = static_cast<float>(x.values[row + i] / std::sqrt(sum));
    }
  }
  return x;
}

HostArray LogDecay(uint64_t seed, const Shape& shape, Decay decay) {
  if (decay == Decay::kSlow) return RandomUniform(seed, "g", shape, -0.002, 0);
  HostArray g = RandomNormal(seed, "g", shape);
  for (double& x : g.values) {
    const double ordinary = -std::log1p(std::exp(-x));
    x = static_cast<float>(decay == Decay::kOrdinary ? ordinary
                           : x > 0.5                 ? -30.0
                                                     : 0.01 * ordinary);
  }
  return g;
}

CaseData Instance(uint64_t seed, const Sizes& n) {
  const Shape scalars = {n.batch, n.length, n.heads}, keys = {n.batch, n.length, n.key_heads, n.k};
  CaseData data{.op = n.decay == Decay::kNone ? "delta_rule" : "gated_delta_rule",
                .attributes = {{"scale", 1 / std::sqrt(static_cast<double>(n.k))}}};
  data.name = absl::StrCat(n.batch, "x", n.length, " heads ", n.key_heads, ":", n.heads, " K ", n.k,
                           " V ", n.v, " documents ", n.cu_seqlens.size(), " decay ",
                           static_cast<int>(n.decay), n.initial_state ? " state" : "");
  data.inputs["q"] = Normalised(RandomNormal(seed, "q", keys));
  data.inputs["k"] = Normalised(RandomNormal(seed, "k", keys));
  data.inputs["v"] = RandomNormal(seed, "v", {n.batch, n.length, n.heads, n.v});
  data.inputs["beta"] = RandomUniform(seed, "beta", scalars, 0, n.decay == Decay::kSlow ? 2 : 1);
  if (n.decay != Decay::kNone) data.inputs["g"] = LogDecay(seed, scalars, n.decay);
  if (!n.cu_seqlens.empty()) data.inputs["cu_seqlens"] = IntArray(n.cu_seqlens);
  if (n.initial_state) {
    const auto documents =
        n.cu_seqlens.empty() ? n.batch : static_cast<int64_t>(n.cu_seqlens.size()) - 1;
    data.inputs["initial_state"] =
        RandomNormal(seed, "initial_state", {documents, n.heads, n.k, n.v}, 0.3);
  }
  return data;
}

std::map<std::string, Var> Run(CaseContext& c) {
  ScanDeltaInputs in{.q_NHK = c.FlatIn("q"),
                     .k_NHK = c.FlatIn("k"),
                     .v_NGV = c.FlatIn("v"),
                     .g_NG = {},
                     .beta_NG = c.FlatIn("beta"),
                     .initial_state_DGKV = {}};
  if (c.Has("g")) in.g_NG = c.FlatIn("g");
  if (c.Has("initial_state")) in.initial_state_DGKV = c.In("initial_state");
  const ScanOutputs out = ScanDelta(c.tape(), in, c.Number("scale"), c.documents("q"),
                                    /*want_final_state=*/true);
  return {{"o", out.o_NGV}, {"final_state", out.final_state_DGKV}};
}

OpCase Case(const char* op, bool decays) {
  return {.op = op,
          .run = Run,
          .instances =
              [decays](uint64_t seed) {
                std::vector<Sizes> sizes = {
                    {1, 1, 1, 1, 1, 1},
                    {2, 64, 2, 2, 16, 16, {}, Decay::kOrdinary, true},
                    {1, 140, 1, 3, 12, 20, {0, 1, 65, 66, 140}, Decay::kSlow, true},
                    {3, 77, 1, 2, 33, 7, {}, Decay::kMixed},
                    {1, 75, 1, 1, 96, 112, {0, 66, 75}, Decay::kMixed, true}};
                std::vector<CaseData> cases;
                for (Sizes& n : sizes) {
                  if (!decays) n.decay = Decay::kNone;
                  cases.push_back(Instance(seed, n));
                }
                return cases;
              },
          .bench =
              [decays] {
                return Instance(
                    0, {8, 256, 4, 4, 48, 96, {}, decays ? Decay::kOrdinary : Decay::kNone});
              }};
}

}  // namespace

OpCase GatedDeltaRuleCase() { return Case("gated_delta_rule", true); }
OpCase DeltaRuleCase() { return Case("delta_rule", false); }

}  // namespace lt2
