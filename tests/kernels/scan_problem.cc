#include "tests/kernels/scan_problem.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace lt2 {

ScanSizes RandomScanSizes(std::mt19937_64& random) {
  ScanSizes n{.tokens = static_cast<int64_t>(1 + random() % 300),
              .key_heads = static_cast<int64_t>(1 + random() % 2),
              .heads = 0,
              .k = static_cast<int64_t>(1 + random() % 40),
              .v = static_cast<int64_t>(1 + random() % 70),
              .cu_seqlens = {0}};
  n.heads = n.key_heads * static_cast<int64_t>(1 + random() % 3);
  while (n.cu_seqlens.back() < n.tokens) {
    const int64_t longest = random() % 3 == 0 ? 3 : 150;
    n.cu_seqlens.push_back(
        std::min<int64_t>(n.tokens, n.cu_seqlens.back() + 1 + random() % longest));
  }
  return n;
}

CaseData ScanProblem(const std::string& op, uint64_t seed, const ScanSizes& n, double strongest) {
  CaseData data{.op = op, .name = absl::StrCat(seed), .attributes = {{"scale", 0.2}}};
  const double edge = 1 / std::sqrt(static_cast<double>(n.k));
  const Shape keys = {1, n.tokens, n.key_heads, n.k}, scalars = {1, n.tokens, n.heads};
  data.inputs["q"] = RandomUniform(seed, "q", keys, -edge, edge);
  data.inputs["k"] = RandomUniform(seed, "k", keys, -edge, edge);
  data.inputs["v"] = RandomNormal(seed, "v", {1, n.tokens, n.heads, n.v});
  const auto decays = [&](const Shape& shape) {
    return RandomUniform(seed, "g", shape, -strongest, 0);
  };
  if (op == "retention") data.inputs["log_gamma"] = decays({n.heads});
  if (op == "simple_gla" || op == "gated_delta_rule") data.inputs["g"] = decays(scalars);
  if (op == "gla" || op == "kda") data.inputs["g"] = decays({1, n.tokens, n.heads, n.k});
  if (op == "delta_rule" || op == "gated_delta_rule" || op == "kda") {
    data.inputs["beta"] = RandomUniform(seed, "beta", scalars, 0, 2);
  }
  const auto documents = static_cast<int64_t>(n.cu_seqlens.size()) - 1;
  const Shape states = {documents, n.heads, n.k, n.v};
  data.inputs["initial_state"] = RandomNormal(seed, "initial_state", states, 0.3);
  data.inputs["cu_seqlens"] = IntArray(n.cu_seqlens);
  data.cotangents["o"] = RandomNormal(seed, "do", data.inputs["v"].shape);
  data.cotangents["final_state"] = RandomNormal(seed, "dfinal", states, 0.3);
  return data;
}

void RoundToBf16(CaseData& data) {
  const auto round = [](double& x) {
    auto bits = std::bit_cast<uint32_t>(static_cast<float>(x));
    bits += 0x7fff + ((bits >> 16) & 1);  // to nearest, ties to even
    x = std::bit_cast<float>(bits & 0xffff0000u);
  };
  for (const char* name : {"q", "k", "v"}) std::ranges::for_each(data.inputs[name].values, round);
  std::ranges::for_each(data.cotangents["o"].values, round);
}

CaseResult RunScan(const CaseData& data, Backend backend, DType dtype) {
  Stream stream{.device = {backend}};
  return RunCase(*FindOpCase(data.op), data, stream, dtype);
}

void ExpectNear(const HostArrays& got, const HostArrays& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [name, array] : want) {
    EXPECT_LE(RelativeError(got.at(name), array), tolerance) << name;
  }
}

void ExpectNearReference(const CaseData& data) {
  const CaseResult want = RunScan(data, Backend::kReference, DType::kF64);
  const CaseResult got64 = RunScan(data, Backend::kCpu, DType::kF64);
  ExpectNear(got64.outputs, want.outputs, 1e-11);
  ExpectNear(got64.grads, want.grads, 1e-11);
  const CaseResult got32 = RunScan(data, Backend::kCpu, DType::kF32);
  ExpectNear(got32.outputs, want.outputs, 5e-6);
  ExpectNear(got32.grads, want.grads, 2e-5);
}

bool ByDocument(const std::string& name) {
  return name == "initial_state" || name == "final_state";
}

bool BySequence(const std::string& name) {
  return !ByDocument(name) && name != "cu_seqlens" && name != "log_gamma";
}

HostArray TokensOf(const HostArray& x, int64_t tokens, int64_t begin, int64_t end) {
  const auto width = static_cast<int64_t>(x.values.size()) / tokens;
  HostArray part{.shape = x.shape};
  part.shape[x.shape[0] == tokens ? 0 : 1] = end - begin;
  part.values.assign(x.values.begin() + begin * width, x.values.begin() + end * width);
  return part;
}

CaseData PartOf(const CaseData& data, int64_t tokens, int64_t begin, int64_t end) {
  CaseData part = data;
  for (HostArrays* arrays : {&part.inputs, &part.cotangents}) {
    for (auto& [name, array] : *arrays) {
      if (BySequence(name)) array = TokensOf(array, tokens, begin, end);
    }
  }
  part.inputs["cu_seqlens"] = IntArray({0, end - begin});
  return part;
}

}  // namespace lt2
