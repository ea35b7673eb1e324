#include "kernels/scan_delta.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/case.h"

namespace lt2 {
namespace {

// kMixed: next to nothing, or -30, value by value.
enum class Decay { kNone, kZero, kOrdinary, kSlow, kMixed };
enum class Rule { kDelta, kGated, kChannels };

const char* NameOf(Rule rule) {
  return rule == Rule::kDelta ? "delta_rule" : rule == Rule::kGated ? "gated_delta_rule" : "kda";
}

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
  if (decay == Decay::kZero) return {.shape = shape, .values = std::vector<double>(shape.size())};
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

CaseData Instance(uint64_t seed, const Sizes& n, Rule rule) {
  const Shape scalars = {n.batch, n.length, n.heads}, keys = {n.batch, n.length, n.key_heads, n.k};
  CaseData data{.op = NameOf(rule),
                .attributes = {{"scale", 1 / std::sqrt(static_cast<double>(n.k))}}};
  data.name = absl::StrCat(n.batch, "x", n.length, " heads ", n.key_heads, ":", n.heads, " K ", n.k,
                           " V ", n.v, " documents ", n.cu_seqlens.size(), " decay ",
                           static_cast<int>(n.decay), n.initial_state ? " state" : "");
  data.inputs["q"] = Normalised(RandomNormal(seed, "q", keys));
  data.inputs["k"] = Normalised(RandomNormal(seed, "k", keys));
  data.inputs["v"] = RandomNormal(seed, "v", {n.batch, n.length, n.heads, n.v});
  data.inputs["beta"] = RandomUniform(seed, "beta", scalars, 0, n.decay == Decay::kSlow ? 2 : 1);
  if (rule == Rule::kGated) data.inputs["g"] = LogDecay(seed, scalars, n.decay);
  if (rule == Rule::kChannels) {
    data.inputs["g"] = LogDecay(seed, {n.batch, n.length, n.heads, n.k}, n.decay);
  }
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
                     .beta_NG = c.FlatIn("beta"),
                     .initial_state_DGKV = {}};
  if (c.Has("g")) {
    const Var g = c.FlatIn("g");
    (g.shape().rank() == 3 ? in.g_NGK : in.g_NG) = g;
  }
  if (c.Has("initial_state")) in.initial_state_DGKV = c.In("initial_state");
  const ScanOutputs out = ScanDelta(c.tape(), in, c.Number("scale"), c.documents("q"),
                                    /*want_final_state=*/true);
  return {{"o", out.o_NGV}, {"final_state", out.final_state_DGKV}};
}

OpCase Case(Rule rule) {
  return {.op = NameOf(rule),
          .run = Run,
          .instances =
              [rule](uint64_t seed) {
                std::vector<Sizes> sizes = {
                    {1, 1, 1, 1, 1, 1},
                    {2, 64, 2, 2, 16, 16, {}, Decay::kOrdinary, true},
                    {1, 140, 1, 3, 12, 20, {0, 1, 65, 66, 140}, Decay::kSlow, true},
                    {3, 77, 1, 2, 33, 7, {}, Decay::kMixed},
                    {1, 75, 1, 1, 96, 112, {0, 66, 75}, Decay::kMixed, true}};
                if (rule == Rule::kChannels) sizes.push_back({1, 70, 1, 2, 8, 8, {}, Decay::kZero});
                std::vector<CaseData> cases;
                for (Sizes& n : sizes) {
                  if (rule == Rule::kDelta) n.decay = Decay::kNone;
                  cases.push_back(Instance(seed, n, rule));
                }
                return cases;
              },
          .bench =
              [rule] {
                return Instance(0, {8, 256, 4, 4, 48, 96, {}, Decay::kOrdinary}, rule);
              }};
}

}  // namespace

OpCase GatedDeltaRuleCase() { return Case(Rule::kGated); }
OpCase DeltaRuleCase() { return Case(Rule::kDelta); }
OpCase KdaCase() { return Case(Rule::kChannels); }

}  // namespace lt2
