// Properties of the scans that no single instance shows: any cut of a sequence into documents,
// chunks and states is the same recurrence, whatever the decays.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/kernels/scan_problem.h"

namespace lt2 {
namespace {

class ScanProperty : public testing::TestWithParam<const char*> {};
class DecayingScanProperty : public ScanProperty {};  // those whose tokens have decays of their own

TEST_P(ScanProperty, ChunksAreTheRecurrence) {
  for (uint64_t seed = 1; seed <= 9; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937_64 random(seed);
    const double strongest = std::array{0.01, 1.0, 30.0}[seed % 3];
    ExpectNearReference(ScanProblem(GetParam(), seed, RandomScanSizes(random), strongest));
  }
}

// Sums of log-decays far larger than the differences needed, in either order and side by side.
TEST_P(DecayingScanProperty, WeakDecayBesideStrongDecayKeepsItsDigits) {
  const ScanSizes n{
      .tokens = 128, .key_heads = 1, .heads = 1, .k = 16, .v = 16, .cu_seqlens = {0, 128}};
  for (const int64_t shift : {0, 5}) {
    SCOPED_TRACE(absl::StrCat("shift ", shift));
    CaseData data = ScanProblem(GetParam(), 7, n, 0.01);
    std::vector<double>& g = data.inputs["g"].values;
    const auto width = static_cast<int64_t>(g.size()) / 128;
    for (int64_t t = 0; t < 128; ++t) {
      for (int64_t d = 0; d < width; ++d) {
        if ((t + shift * d) % 64 < 40) g[t * width + d] = -30;
      }
    }
    ExpectNearReference(data);
  }
}

// No decay and all of it, one key repeated, beta 0 and 1, lengths around every edge; also on inputs
// that bfloat16 can hold.
TEST_P(ScanProperty, ExtremesAreRight) {
  for (const int64_t length : {1, 15, 16, 17, 48, 63, 64, 65, 129}) {
    for (const double decay : {0.0, -30.0}) {
      for (const bool bf16 : {false, true}) {
        SCOPED_TRACE(absl::StrCat("length ", length, " decay ", decay, bf16 ? " bf16" : ""));
        const ScanSizes n{.tokens = length,
                          .key_heads = 1,
                          .heads = 2,
                          .k = 12,
                          .v = 20,
                          .cu_seqlens = {0, length}};
        CaseData data = ScanProblem(GetParam(), 23, n, 1);
        for (const char* name : {"g", "log_gamma"}) {
          if (data.inputs.contains(name)) std::ranges::fill(data.inputs[name].values, decay);
        }
        if (!bf16) std::ranges::fill(data.inputs["k"].values, 0.25);
        if (data.inputs.contains("beta")) {
          std::vector<double>& beta = data.inputs["beta"].values;
          for (size_t i = 0; i < beta.size(); ++i) beta[i] = i % 3 == 0 ? 0 : 1;
        }
        if (bf16) RoundToBf16(data);
        ExpectNearReference(data);
      }
    }
  }
}

TEST_P(ScanProperty, SplittingAndPassingTheStateChangesNothing) {
  for (const auto& [seed, length, cut] :
       std::vector<std::array<int64_t, 3>>{{1, 200, 64}, {2, 150, 1}, {3, 97, 96}, {4, 260, 131}}) {
    SCOPED_TRACE(absl::StrCat("seed ", seed, " length ", length, " cut ", cut));
    const ScanSizes n{
        .tokens = length, .key_heads = 1, .heads = 2, .k = 12, .v = 20, .cu_seqlens = {0, length}};
    const CaseData whole = ScanProblem(GetParam(), seed, n, 0.5);
    const CaseResult want = RunScan(whole, Backend::kCpu, DType::kF64);
    CaseData head = PartOf(whole, length, 0, cut), tail = PartOf(whole, length, cut, length);
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
        EXPECT_LE(RelativeError(first.at(name), TokensOf(array, length, 0, cut)), 1e-11) << name;
        EXPECT_LE(RelativeError(last.at(name), TokensOf(array, length, cut, length)), 1e-11)
            << name;
      }
    }
  }
}

TEST_P(ScanProperty, ADocumentDoesNotSeeItsNeighbours) {
  const ScanSizes n{.tokens = 230,
                    .key_heads = 1,
                    .heads = 2,
                    .k = 24,
                    .v = 48,
                    .cu_seqlens = {0, 70, 140, 141, 230}};
  const CaseData data = ScanProblem(GetParam(), 11, n, 0.002);  // what leaked would stay
  CaseData other = data;
  for (HostArrays* arrays : {&other.inputs, &other.cotangents}) {
    for (auto& [name, array] : *arrays) {
      if (!BySequence(name) && !ByDocument(name)) continue;
      const int64_t rows = ByDocument(name) ? 4 : 230;
      const auto width = static_cast<int64_t>(array.values.size()) / rows;
      const int64_t begin = ByDocument(name) ? 1 : 70, end = ByDocument(name) ? 2 : 140;
      for (int64_t i = begin * width; i < end * width; ++i) array.values[i] *= 0.75;
    }
  }
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    const CaseResult a = RunScan(data, Backend::kCpu, dtype);
    const CaseResult b = RunScan(other, Backend::kCpu, dtype);
    for (const auto& [x, y] : {std::pair(a.outputs, b.outputs), std::pair(a.grads, b.grads)}) {
      for (const auto& [name, array] : x) {
        if (!BySequence(name) && !ByDocument(name)) continue;
        const int64_t rows = ByDocument(name) ? 4 : 230, begin = ByDocument(name) ? 1 : 70,
                      end = ByDocument(name) ? 2 : 140;
        const std::vector<double>&p = array.values, &q = y.at(name).values;
        const auto width = static_cast<int64_t>(p.size()) / rows;
        const auto from = [&](const auto& all, int64_t row) { return all.begin() + row * width; };
        EXPECT_TRUE(std::equal(from(p, 0), from(p, begin), from(q, 0))) << name;
        EXPECT_TRUE(std::equal(from(p, end), p.end(), from(q, end))) << name;
        EXPECT_FALSE(std::equal(from(p, begin), from(p, end), from(q, begin))) << name;
      }
    }
  }
}

std::string NameOf(const testing::TestParamInfo<const char*>& info) { return info.param; }

INSTANTIATE_TEST_SUITE_P(Ops, ScanProperty,
                         testing::Values("linear_attention", "retention", "simple_gla", "gla",
                                         "delta_rule", "gated_delta_rule", "kda"),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Ops, DecayingScanProperty,
                         testing::Values("simple_gla", "gla", "gated_delta_rule", "kda"), NameOf);

}  // namespace
}  // namespace lt2
