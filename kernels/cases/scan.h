// Inputs of the cases of scans over a state [K, V].
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/case.h"

namespace lt2 {

enum class CaseDecay { kOrdinary, kSlow, kMixed, kZero };  // kMixed: hardly any, or -30, one by one

struct ScanCaseSizes {
  int64_t batch, length, key_heads, heads, k, v;
  std::vector<int64_t> cu_seqlens = {};  // documents, where they are not the rows
  CaseDecay decay = CaseDecay::kOrdinary;
  bool initial_state = false;
};

// Ordinary ones are log σ of normal numbers this spread.
inline HostArray LogDecays(uint64_t seed, const Shape& shape, CaseDecay decay, double spread) {
  if (decay == CaseDecay::kZero) {
    return {.shape = shape, .values = std::vector<double>(shape.size())};
  }
  if (decay == CaseDecay::kSlow) return RandomUniform(seed, "g", shape, -0.002, 0);
  HostArray g = RandomNormal(seed, "g", shape, spread);
  for (double& x : g.values) {
    const double ordinary = -std::log1p(std::exp(-x));
    x = static_cast<float>(decay == CaseDecay::kOrdinary ? ordinary
                           : x > spread / 2              ? -30.0
                                                         : 0.01 * ordinary);
  }
  return g;
}

inline std::map<std::string, Var> ScanResults(const ScanOutputs& out) {
  if (!out.final_state_DGKV.value.defined()) return {{"o", out.o_NGV}};
  return {{"o", out.o_NGV}, {"final_state", out.final_state_DGKV}};
}

// All but the gates.
inline CaseData ScanCase(const std::string& op, uint64_t seed, const ScanCaseSizes& n) {
  CaseData data{.op = op, .attributes = {{"scale", 1 / std::sqrt(static_cast<double>(n.k))}}};
  data.name = absl::StrCat(n.batch, "x", n.length, " heads ", n.key_heads, ":", n.heads, " K ", n.k,
                           " V ", n.v, " documents ", n.cu_seqlens.size(), " decay ",
                           static_cast<int>(n.decay), n.initial_state ? " state" : "");
  data.inputs["q"] = RandomNormal(seed, "q", {n.batch, n.length, n.key_heads, n.k});
  data.inputs["k"] = RandomNormal(seed, "k", {n.batch, n.length, n.key_heads, n.k});
  data.inputs["v"] = RandomNormal(seed, "v", {n.batch, n.length, n.heads, n.v});
  if (!n.cu_seqlens.empty()) data.inputs["cu_seqlens"] = IntArray(n.cu_seqlens);
  if (n.initial_state) {
    const auto documents =
        n.cu_seqlens.empty() ? n.batch : static_cast<int64_t>(n.cu_seqlens.size()) - 1;
    data.inputs["initial_state"] =
        RandomNormal(seed, "initial_state", {documents, n.heads, n.k, n.v}, 0.3);
  }
  return data;
}

inline std::vector<ScanCaseSizes> ScanSizesForTests() {
  return {{1, 1, 1, 1, 1, 1},
          {2, 64, 2, 2, 16, 16, {}, CaseDecay::kOrdinary, true},
          {1, 140, 1, 3, 12, 20, {0, 1, 65, 66, 140}, CaseDecay::kSlow, true},
          {3, 77, 1, 2, 33, 7, {}, CaseDecay::kMixed},
          {1, 75, 1, 1, 96, 112, {0, 66, 75}, CaseDecay::kMixed, true}};
}

template <class Instance>
std::vector<CaseData> ScanInstances(const Instance& instance) {
  std::vector<CaseData> cases;
  for (const ScanCaseSizes& n : ScanSizesForTests()) cases.push_back(instance(n));
  return cases;
}

}  // namespace lt2
