// The additive scans beyond what every operator's case shows: random sizes, passing the state on,
// strangers in other documents, single steps, and hard decays.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "absl/strings/str_cat.h"
#include "kernels/case.h"
#include "kernels/scan_channel.h"
#include "kernels/scan_scalar.h"

namespace lt2 {
namespace {

constexpr const char* kOps[] = {"linear_attention", "retention", "simple_gla", "gla"};

struct Sizes {
  int64_t tokens, key_heads, heads, k, v;
  std::vector<int64_t> cu_seqlens;
};

// strongest: the decay of a token is at least exp(-strongest).
CaseData Problem(const std::string& op, uint64_t seed, const Sizes& n, double strongest) {
  CaseData data{.op = op, .name = absl::StrCat(seed), .attributes = {{"scale", 0.2}}};
  const Shape keys = {1, n.tokens, n.key_heads, n.k};
  data.inputs["q"] = RandomNormal(seed, "q", keys);
  data.inputs["k"] = RandomNormal(seed, "k", keys);
  data.inputs["v"] = RandomNormal(seed, "v", {1, n.tokens, n.heads, n.v});
  const auto decays = [&](const Shape& shape) {
    return RandomUniform(seed, "g", shape, -strongest, 0);
  };
  if (op == "retention") data.inputs["log_gamma"] = decays({n.heads});
  if (op == "simple_gla") data.inputs["g"] = decays({1, n.tokens, n.heads});
  if (op == "gla") data.inputs["g"] = decays({1, n.tokens, n.heads, n.k});
  const int64_t documents = static_cast<int64_t>(n.cu_seqlens.size()) - 1;
  data.inputs["initial_state"] =
      RandomNormal(seed, "initial_state", {documents, n.heads, n.k, n.v}, 0.3);
  data.inputs["cu_seqlens"] = IntArray(n.cu_seqlens);
  data.cotangents["o"] = RandomNormal(seed, "do", data.inputs["v"].shape);
  data.cotangents["final_state"] =
      RandomNormal(seed, "dfinal", data.inputs["initial_state"].shape, 0.3);
  return data;
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

// Tokens [begin, end) of what is [1, tokens, …].
HostArray Tokens(const HostArray& x, int64_t tokens, int64_t begin, int64_t end) {
  const auto width = static_cast<int64_t>(x.values.size()) / tokens;
  HostArray part{.shape = x.shape};
  if (x.shape.rank() > 1 && x.shape[0] == 1) {
    part.shape[1] = end - begin;
  } else {
    part.shape[0] = end - begin;
  }
  part.values.assign(x.values.begin() + begin * width, x.values.begin() + end * width);
  return part;
}

CaseData Part(const CaseData& data, int64_t tokens, int64_t begin, int64_t end) {
  CaseData part = data;
  for (HostArrays* arrays : {&part.inputs, &part.cotangents}) {
    for (auto& [name, array] : *arrays) {
      if (BySequence(name)) array = Tokens(array, tokens, begin, end);
    }
  }
  part.inputs["cu_seqlens"] = IntArray({0, end - begin});
  return part;
}

class AdditiveScan : public testing::TestWithParam<const char*> {};

TEST_P(AdditiveScan, ChunksAreTheRecurrence) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937_64 random(seed);
    Sizes n{.tokens = static_cast<int64_t>(1 + random() % 300),
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
    ExpectNearReference(Problem(GetParam(), seed, n, std::array{0.01, 1.0, 30.0}[seed % 3]));
  }
}

// Sums of log-decays far larger than the differences needed, in either order and side by side.
TEST_P(AdditiveScan, WeakDecayBesideStrongDecayKeepsItsDigits) {
  const Sizes n{
      .tokens = 128, .key_heads = 1, .heads = 1, .k = 16, .v = 16, .cu_seqlens = {0, 128}};
  CaseData data = Problem(GetParam(), 7, n, 0.01);
  if (!data.inputs.contains("g")) return;
  std::vector<double>& g = data.inputs["g"].values;
  const int64_t width = static_cast<int64_t>(g.size()) / 128;
  for (int64_t t = 0; t < 128; ++t) {
    for (int64_t d = 0; d < width; ++d) {
      if ((t + 5 * d) % 64 < 40) g[t * width + d] = -30;
    }
  }
  ExpectNearReference(data);
}

TEST_P(AdditiveScan, SplittingAndPassingTheStateChangesNothing) {
  for (const auto& [length, cut] :
       std::vector<std::pair<int64_t, int64_t>>{{200, 64}, {150, 1}, {97, 96}, {260, 131}}) {
    SCOPED_TRACE(absl::StrCat("length ", length, " cut ", cut));
    const Sizes n{
        .tokens = length, .key_heads = 1, .heads = 2, .k = 12, .v = 20, .cu_seqlens = {0, length}};
    const CaseData whole = Problem(GetParam(), length, n, 0.5);
    const CaseResult want = RunScan(whole, Backend::kCpu, DType::kF64);
    CaseData head = Part(whole, length, 0, cut), tail = Part(whole, length, cut, length);
    tail.inputs["initial_state"] =
        RunScan(head, Backend::kCpu, DType::kF64).outputs.at("final_state");
    const CaseResult after = RunScan(tail, Backend::kCpu, DType::kF64);
    head.cotangents["final_state"] = after.grads.at("initial_state");
    const CaseResult before = RunScan(head, Backend::kCpu, DType::kF64);

    EXPECT_LE(RelativeError(after.outputs.at("final_state"), want.outputs.at("final_state")),
              1e-12);
    EXPECT_LE(RelativeError(before.grads.at("initial_state"), want.grads.at("initial_state")),
              1e-12);
    for (const auto& [all, first, last] : {std::tuple(want.outputs, before.outputs, after.outputs),
                                           std::tuple(want.grads, before.grads, after.grads)}) {
      for (const auto& [name, array] : all) {
        if (!BySequence(name)) continue;
        EXPECT_LE(RelativeError(first.at(name), Tokens(array, length, 0, cut)), 1e-11) << name;
        EXPECT_LE(RelativeError(last.at(name), Tokens(array, length, cut, length)), 1e-11) << name;
      }
    }
  }
}

TEST_P(AdditiveScan, ADocumentDoesNotSeeItsNeighbours) {
  const Sizes n{.tokens = 230,
                .key_heads = 1,
                .heads = 2,
                .k = 24,
                .v = 48,
                .cu_seqlens = {0, 70, 140, 141, 230}};
  const CaseData data = Problem(GetParam(), 11, n, 0.002);  // what leaked would stay
  CaseData other = data;
  for (HostArrays* arrays : {&other.inputs, &other.cotangents}) {
    for (auto& [name, array] : *arrays) {
      if (!BySequence(name)) continue;
      const auto width = static_cast<int64_t>(array.values.size()) / 230;
      for (int64_t i = 70 * width; i < 140 * width; ++i) array.values[i] *= 0.75;
    }
  }
  for (DType dtype : {DType::kF32, DType::kF64}) {
    const CaseResult a = RunScan(data, Backend::kCpu, dtype);
    const CaseResult b = RunScan(other, Backend::kCpu, dtype);
    for (const auto& [x, y] : {std::pair(a.outputs, b.outputs), std::pair(a.grads, b.grads)}) {
      for (const auto& [name, array] : x) {
        const int64_t rows = ByDocument(name) ? 4 : 230, begin = ByDocument(name) ? 1 : 70,
                      end = ByDocument(name) ? 2 : 140;
        const std::vector<double>&p = array.values, &q = y.at(name).values;
        const int64_t width = static_cast<int64_t>(p.size()) / rows;
        EXPECT_TRUE(std::equal(p.begin(), p.begin() + begin * width, q.begin())) << name;
        EXPECT_TRUE(std::equal(p.begin() + end * width, p.end(), q.begin() + end * width)) << name;
        EXPECT_FALSE(std::equal(p.begin() + begin * width, p.begin() + end * width,
                                q.begin() + begin * width))
            << name;
      }
    }
  }
}

// Row t of each of the two equal sequences in x [2 · length, …].
Tensor TimeRows(const Tensor& x, int64_t length, int64_t t) {
  Shape shape = x.shape();
  shape[0] = 2;
  const Tensor rows = Tensor::Empty(shape, x.dtype(), x.device());
  for (int64_t b = 0; b < 2; ++b) {
    rows.Rows(b, b + 1).CopyFrom(x.Rows(b * length + t, b * length + t + 1));
  }
  return rows;
}

TEST_P(AdditiveScan, StepsAreTheScan) {
  const std::string op = GetParam();
  const int64_t length = 90;
  const Sizes n{.tokens = 2 * length,
                .key_heads = 2,
                .heads = 4,
                .k = 24,
                .v = 30,
                .cu_seqlens = {0, length, 2 * length}};
  const CaseData data = Problem(op, 17, n, 0.5);
  for (const auto& [backend, dtype, tolerance] :
       {std::tuple(Backend::kReference, DType::kF64, 1e-13),
        std::tuple(Backend::kCpu, DType::kF64, 1e-12),
        std::tuple(Backend::kCpu, DType::kF32, 5e-6)}) {
    Stream stream{.device = {backend}};
    const CaseResult want = RunCase(*FindOpCase(op), data, stream, dtype);
    const auto make = [&, type = dtype](const char* name) {
      const auto found = data.inputs.find(name);
      if (found == data.inputs.end()) return Tensor();
      const HostArray& x = found->second;
      const bool flatten = BySequence(name);
      Shape shape;
      for (int i = flatten ? 1 : 0; i < x.shape.rank(); ++i) shape.push_back(x.shape[i]);
      return Tensor::FromHost(x.values, shape, type, stream.device);
    };
    const Tensor q = make("q"), k = make("k"), v = make("v"), g = make("g");
    const Tensor log_gamma = make("log_gamma"), state = make("initial_state");
    const Tensor o = Tensor::Empty({2, n.heads, n.v}, dtype, stream.device);
    for (int64_t t = 0; t < length; ++t) {
      const auto at = [&](const Tensor& x) {
        return x.defined() ? TimeRows(x, length, t) : Tensor();
      };
      if (op == "gla") {
        ScanChannelStep(stream, {.q_BHK = at(q),
                                 .k_BHK = at(k),
                                 .v_BGV = at(v),
                                 .g_BGK = at(g),
                                 .state_BGKV = state,
                                 .scale = 0.2,
                                 .o_BGV = o});
      } else {
        ScanScalarStep(stream, {.q_BHK = at(q),
                                .k_BHK = at(k),
                                .v_BGV = at(v),
                                .g_BG = at(g),
                                .log_gamma_G = log_gamma,
                                .state_BGKV = state,
                                .scale = 0.2,
                                .o_BGV = o});
      }
      const std::vector<double>& all = want.outputs.at("o").values;
      const int64_t row = n.heads * n.v;
      HostArray row_want{.shape = {2 * row}};
      for (int64_t b = 0; b < 2; ++b) {
        const auto from = all.begin() + (b * length + t) * row;
        row_want.values.insert(row_want.values.end(), from, from + row);
      }
      ASSERT_LE(RelativeError({.shape = {2 * row}, .values = o.ToDoubles()}, row_want), tolerance)
          << "token " << t;
    }
    EXPECT_LE(RelativeError({.shape = state.shape(), .values = state.ToDoubles()},
                            want.outputs.at("final_state")),
              tolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, AdditiveScan, testing::ValuesIn(kOps),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace lt2
