// Every operator's instances on a GPU: float32 against the float64 reference, gradients written and
// added, the same bits twice. And bfloat16 where it has kernels of its own that no other test sees.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "core/cuda.h"
#include "kernels/case.h"

namespace lt2 {
namespace {

class OnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda::DeviceCount() == 0) GTEST_SKIP() << "there is no GPU here";
  }
};
class GpuCase : public OnGpu, public testing::WithParamInterface<OpCase> {};

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

// What bfloat16 holds of it, so that both sides see the same.
void Round(HostArray& array) {
  if (array.integer) return;
  array.values =
      Tensor::FromHost(array.values, array.shape, DType::kBF16, {Backend::kCpu}).ToDoubles();
}

void ExpectBfloat16Agrees(const OpCase& op_case, CaseData data) {
  for (auto& [name, array] : data.inputs) Round(array);
  for (const auto& [name, array] :
       RunOn(op_case, data, Backend::kReference, DType::kF64, 1).outputs) {
    Round(data.cotangents[name] = RandomNormal(5, name, array.shape));
  }
  for (const int uses : {1, 3}) {
    SCOPED_TRACE(absl::StrCat(data.name, " uses ", uses));
    const CaseResult want = RunOn(op_case, data, Backend::kReference, DType::kF64, uses);
    const CaseResult got = RunOn(op_case, data, Backend::kCuda, DType::kBF16, uses);
    ExpectNear(got.outputs, want.outputs, 1.5e-2);
    ExpectNear(got.grads, want.grads, 2e-2);
  }
}

TEST_F(OnGpu, NarrowLinearAgreesInBfloat16) {
  const OpCase& op_case = *FindOpCase("narrow_linear");
  for (const CaseData& data : op_case.instances(4)) ExpectBfloat16Agrees(op_case, data);
}

// Heads of a few channels go step by step, and are rounded on the way.
TEST_F(OnGpu, QkvConvAgreesInBfloat16) {
  const OpCase& op_case = *FindOpCase("qkv_conv");
  for (const CaseData& data : op_case.instances(4)) {
    if (std::get<double>(data.attributes.at("head_dim")) < 64) continue;
    ExpectBfloat16Agrees(op_case, data);
  }
}

// How often a run is repeated: LT2_REPEATS, or twice.
int Repeats() {
  const char* asked = std::getenv("LT2_REPEATS");
  return asked == nullptr ? 2 : std::max(2, std::atoi(asked));
}

void ExpectSameBits(const HostArrays& got, const HostArrays& want) {
  for (const auto& [name, array] : want) EXPECT_EQ(got.at(name).values, array.values) << name;
}

void ExpectSameBitsAgain(const OpCase& op_case, const CaseData& data, DType dtype) {
  SCOPED_TRACE(absl::StrCat(data.name, " ", Name(dtype)));
  const CaseResult once = RunOn(op_case, data, Backend::kCuda, dtype, 1);
  for (int i = 1; i < Repeats() && !testing::Test::HasFailure(); ++i) {
    const CaseResult again = RunOn(op_case, data, Backend::kCuda, dtype, 1);
    ExpectSameBits(again.outputs, once.outputs);
    ExpectSameBits(again.grads, once.grads);
  }
}

TEST_P(GpuCase, SameBitsAgain) {
  for (const CaseData& data : GetParam().instances(3)) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      ExpectSameBitsAgain(GetParam(), data, dtype);
    }
  }
}

// Where more blocks are in flight than fit, hand-offs go wrong that small sizes forgive.
TEST_P(GpuCase, SameBitsAgainAtSize) {
  ExpectSameBitsAgain(GetParam(), GetParam().bench(), DType::kBF16);
}

INSTANTIATE_TEST_SUITE_P(Ops, GpuCase, testing::ValuesIn(AllOpCases()),
                         [](const auto& info) { return std::string(info.param.op); });

}  // namespace
}  // namespace lt2
