// The scans on a GPU in bfloat16 against the reference: widths on both sides of every choice of
// kernel, ragged documents, written and added gradients; equal bits twice.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "core/cuda.h"
#include "tests/kernels/scan_problem.h"

namespace lt2 {
namespace {

class ScanOnGpu : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (cuda::DeviceCount() == 0) GTEST_SKIP() << "there is no GPU here";
  }
};

const std::vector<int64_t> kRagged = {0, 1, 64, 65, 193, 323};

CaseResult RunOn(const CaseData& data, Backend backend, DType dtype, int uses = 1) {
  Stream stream{.device = {backend}};
  return RunCase(*FindOpCase(data.op), data, stream, dtype, {.uses = uses});
}

CaseData Rounded(const char* op, uint64_t seed, const ScanSizes& n, double strongest) {
  CaseData data = ScanProblem(op, seed, n, strongest);
  RoundToBf16(data);
  return data;
}

TEST_P(ScanOnGpu, Bfloat16AgreesWithTheReference) {
  for (const auto& [k, v] : std::vector<std::array<int64_t, 2>>{{16, 64},
                                                                {12, 20},
                                                                {33, 8},
                                                                {64, 128},
                                                                {96, 192},
                                                                {100, 72},
                                                                {128, 128},
                                                                {160, 64},
                                                                {256, 136}}) {
    for (const double strongest : {0.01, 30.0}) {
      for (const int uses : {1, 2}) {
        SCOPED_TRACE(absl::StrCat("k ", k, " v ", v, " decays to ", strongest, " uses ", uses));
        const ScanSizes n{.tokens = kRagged.back(),
                          .key_heads = 1,
                          .heads = 2,
                          .k = k,
                          .v = v,
                          .cu_seqlens = kRagged};
        const CaseData data = Rounded(GetParam(), 31, n, strongest);
        const CaseResult want = RunOn(data, Backend::kReference, DType::kF64, uses);
        const CaseResult got = RunOn(data, Backend::kCuda, DType::kBF16, uses);
        ExpectNear(got.outputs, want.outputs, 1.5e-2);
        ExpectNear(got.grads, want.grads, 2e-2);
      }
    }
  }
}

// More blocks and chunks than are in flight at once.
TEST_P(ScanOnGpu, SameBitsAgain) {
  const ScanSizes n{.tokens = 2048,
                    .key_heads = 16,
                    .heads = 16,
                    .k = 96,
                    .v = 192,
                    .cu_seqlens = {0, 1000, 1024, 1025, 2048}};
  const CaseData data = Rounded(GetParam(), 37, n, 0.1);
  const CaseResult once = RunOn(data, Backend::kCuda, DType::kBF16);
  for (int i = 0; i < 3; ++i) {
    const CaseResult again = RunOn(data, Backend::kCuda, DType::kBF16);
    for (const auto& [name, array] : once.outputs) {
      EXPECT_EQ(again.outputs.at(name).values, array.values) << name;
    }
    for (const auto& [name, array] : once.grads) {
      EXPECT_EQ(again.grads.at(name).values, array.values) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, ScanOnGpu,
                         testing::Values("linear_attention", "retention", "simple_gla", "gla",
                                         "delta_rule", "gated_delta_rule", "kda"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace lt2
