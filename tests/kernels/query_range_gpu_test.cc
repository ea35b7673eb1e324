// In float32 on a GPU against the float64 reference.
#include <gtest/gtest.h>

#include "core/cuda.h"
#include "tests/kernels/query_range.h"

namespace lt2 {
namespace {

constexpr Device kGpu{Backend::kCuda};
constexpr RangeTolerance kTolerance{.outputs = 5e-6, .gradients = 2e-5};

class GpuQueryRange : public testing::TestWithParam<RangeOperator> {
 protected:
  void SetUp() override {
    if (cuda::DeviceCount() == 0) GTEST_SKIP() << "there is no GPU here";
  }
};

TEST_P(GpuQueryRange, PartsMakeTheWhole) {
  ExpectPartsMakeTheWhole(GetParam(), kGpu, DType::kF32, kTolerance);
}

TEST_P(GpuQueryRange, ReplaysSeeTheDocumentsOfNow) {
  ExpectReplaysSeeTheDocumentsOfNow(GetParam(), kGpu, DType::kF32);
  ExpectReplaysSeeTheDocumentsOfNow(GetParam(), kGpu, DType::kBF16);
}

INSTANTIATE_TEST_SUITE_P(Operators, GpuQueryRange, testing::ValuesIn(AllRangeOperators()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(GpuQueryRangeOfAWindow, NeedsNoMore) {
  if (cuda::DeviceCount() == 0) GTEST_SKIP() << "there is no GPU here";
  ExpectAWindowNeedsNoMore(kGpu, DType::kF32, kTolerance);
}

}  // namespace
}  // namespace lt2
