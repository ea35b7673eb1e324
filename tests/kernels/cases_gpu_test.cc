// Every operator's instances on a GPU: float32 against the float64 reference, gradients written and
// added, the same bits twice.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "core/cuda.h"
#include "kernels/case.h"

namespace lt2 {
namespace {

class GpuCase : public testing::TestWithParam<OpCase> {
 protected:
  void SetUp() override {
    if (cuda::DeviceCount() == 0) GTEST_SKIP() << "there is no GPU here";
  }
};

CaseResult RunOn(const OpCase& op_case, const CaseData& data, Backend backend, DType dtype,
                 int uses) {
  Stream stream{.device = {backend}};
  return RunCase(op_case, data, stream, dtype, {.uses = uses});
}

void ExpectNear(const HostArrays& got, const HostArrays& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [name, array] : want) {
    EXPECT_LE(RelativeError(got.at(name), array), tolerance) << name;
  }
}

TEST_P(GpuCase, Float32AgreesWithTheReference) {
  for (const uint64_t seed : {1, 2}) {
    for (const CaseData& data : GetParam().instances(seed)) {
      for (const int uses : {1, 3}) {
        SCOPED_TRACE(absl::StrCat("seed ", seed, " ", data.name, " uses ", uses));
        const CaseResult want = RunOn(GetParam(), data, Backend::kReference, DType::kF64, uses);
        const CaseResult got = RunOn(GetParam(), data, Backend::kCuda, DType::kF32, uses);
        ExpectNear(got.outputs, want.outputs, 5e-6);
        ExpectNear(got.grads, want.grads, 2e-5);
      }
    }
  }
}

TEST_P(GpuCase, SameBitsTwice) {
  for (const CaseData& data : GetParam().instances(3)) {
    SCOPED_TRACE(data.name);
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const CaseResult once = RunOn(GetParam(), data, Backend::kCuda, dtype, 1);
      const CaseResult again = RunOn(GetParam(), data, Backend::kCuda, dtype, 1);
      for (const auto& [name, array] : once.outputs) {
        EXPECT_EQ(array.values, again.outputs.at(name).values) << name;
      }
      for (const auto& [name, array] : once.grads) {
        EXPECT_EQ(array.values, again.grads.at(name).values) << name;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, GpuCase, testing::ValuesIn(AllOpCases()),
                         [](const auto& info) { return std::string(info.param.op); });

}  // namespace
}  // namespace lt2
