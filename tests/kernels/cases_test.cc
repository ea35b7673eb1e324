// Every operator's instances: CPU against the reference backend, the reference against central
// differences, the write-or-add rule, equal bits for any number of threads, and a dry run.
#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>

#include "absl/strings/str_cat.h"
#include "core/allocator.h"
#include "kernels/case.h"

namespace lt2 {

void PrintTo(const OpCase& op_case, std::ostream* os) { *os << op_case.op; }

namespace {

constexpr uint64_t kSeed = 20250;

class OperatorCase : public testing::TestWithParam<OpCase> {
 protected:
  void ForEachInstance(const std::function<void(const CaseData&)>& test) const {
    for (const CaseData& data : GetParam().instances(kSeed)) {
      SCOPED_TRACE(absl::StrCat(data.op, " ", data.name, " seed ", kSeed));
      test(data);
    }
  }
  CaseResult Run(const CaseData& data, Backend backend, DType dtype, int uses = 1) const {
    Stream stream{.device = {backend}};
    return RunCase(GetParam(), data, stream, dtype, {.uses = uses});
  }
};

// What is handed out next holds NaN (in any float type), so that a kernel that adds to memory it
// should write, or leaves some of it alone, shows.
void PoisonFreeMemory() {
  constexpr int64_t kBytes = 8 << 20;
  CachingAllocator::Of({Backend::kCpu}).Trim();
  void* memory = CachingAllocator::Of({Backend::kCpu}).Allocate(kBytes);
  std::fill_n(static_cast<unsigned char*>(memory), kBytes, 0xFF);
  CachingAllocator::Of({Backend::kCpu}).Free(memory);
}

void ExpectNear(const HostArrays& got, const HostArrays& want, double tolerance) {
  EXPECT_EQ(got.size(), want.size());
  for (const auto& [name, array] : want) {
    ASSERT_TRUE(got.contains(name)) << name;
    EXPECT_LE(RelativeError(got.at(name), array), tolerance) << name;
  }
}

void ExpectSameBits(const CaseResult& a, const CaseResult& b) {
  for (const auto& [name, array] : a.outputs)
    EXPECT_EQ(array.values, b.outputs.at(name).values) << name;
  for (const auto& [name, array] : a.grads)
    EXPECT_EQ(array.values, b.grads.at(name).values) << name;
}

TEST_P(OperatorCase, CpuFloat64MatchesReference) {
  ForEachInstance([&](const CaseData& data) {
    const CaseResult want = Run(data, Backend::kReference, DType::kF64);
    PoisonFreeMemory();
    const CaseResult got = Run(data, Backend::kCpu, DType::kF64);
    ExpectNear(got.outputs, want.outputs, 1e-10);
    ExpectNear(got.grads, want.grads, 1e-10);
  });
}

TEST_P(OperatorCase, CpuFloat32MatchesReference) {
  ForEachInstance([&](const CaseData& data) {
    const CaseResult want = Run(data, Backend::kReference, DType::kF64);
    PoisonFreeMemory();
    const CaseResult got = Run(data, Backend::kCpu, DType::kF32);
    ExpectNear(got.outputs, want.outputs, 5e-6);
    ExpectNear(got.grads, want.grads, 2e-5);
  });
}

// The operator three times on the same inputs: one gradient is written and two are added.
TEST_P(OperatorCase, GradientsOfSeveralUsesAdd) {
  ForEachInstance([&](const CaseData& data) {
    const CaseResult once = Run(data, Backend::kReference, DType::kF64);
    HostArrays want = once.grads;
    for (auto& [name, array] : want) {
      for (double& value : array.values) value *= 3;
    }
    PoisonFreeMemory();
    ExpectNear(Run(data, Backend::kCpu, DType::kF64, 3).grads, want, 1e-10);
    PoisonFreeMemory();
    ExpectNear(Run(data, Backend::kReference, DType::kF64, 3).grads, want, 1e-10);
  });
}

double Objective(const CaseResult& result, const HostArrays& cotangents) {
  double sum = 0;
  for (const auto& [name, cotangent] : cotangents) {
    const std::vector<double>& values = result.outputs.at(name).values;
    for (size_t i = 0; i < values.size(); ++i) sum += cotangent.values[i] * values[i];
  }
  return sum;
}

// d objective along a random direction, by a fourth-order central difference. Steps are relative to
// each element, so that small ones are not thrown out of their neighbourhood.
TEST_P(OperatorCase, ReferenceGradientIsTheDerivative) {
  constexpr double kStep = 2e-4;
  ForEachInstance([&](const CaseData& given) {
    CaseData data = given;
    for (const auto& [name, array] : Run(data, Backend::kReference, DType::kF64).outputs) {
      if (data.cotangents.contains(name)) continue;
      data.cotangents[name] = RandomNormal(kSeed, absl::StrCat("cotangent ", name), array.shape);
    }
    const CaseResult result = Run(data, Backend::kReference, DType::kF64);
    for (const auto& [name, grad] : result.grads) {
      for (int trial = 0; trial < 3; ++trial) {
        const HostArray& input = data.inputs.at(name);
        HostArray direction = RandomNormal(kSeed + trial, name, input.shape);
        double slope = 0, scale = 0;
        for (size_t i = 0; i < direction.values.size(); ++i) {
          direction.values[i] *= input.values[i] == 0 ? 1 : std::abs(input.values[i]);
          slope += direction.values[i] * grad.values[i];
          scale += std::pow(direction.values[i] * grad.values[i], 2);
        }
        const auto at = [&](double step) {
          CaseData moved = data;
          std::vector<double>& values = moved.inputs.at(name).values;
          for (size_t i = 0; i < values.size(); ++i) values[i] += step * direction.values[i];
          return Objective(Run(moved, Backend::kReference, DType::kF64), data.cotangents);
        };
        const double difference =
            (8 * (at(kStep) - at(-kStep)) - (at(2 * kStep) - at(-2 * kStep))) / (12 * kStep);
        EXPECT_NEAR(slope, difference, 1e-7 * std::max({std::abs(slope), std::sqrt(scale), 1e-3}))
            << name;
      }
    }
  });
}

TEST_P(OperatorCase, SameBitsForAnyNumberOfThreadsAndAgain) {
  const int threads = omp_get_max_threads();
  ForEachInstance([&](const CaseData& data) {
    for (DType dtype : {DType::kF32, DType::kF64}) {
      omp_set_num_threads(1);
      const CaseResult one = Run(data, Backend::kCpu, dtype);
      for (int count : {2, 3, 2}) {
        omp_set_num_threads(count);
        PoisonFreeMemory();
        ExpectSameBits(one, Run(data, Backend::kCpu, dtype));
      }
    }
  });
  omp_set_num_threads(threads);
}

TEST_P(OperatorCase, DryRunHasTheShapesAndCounts) {
  ForEachInstance([&](const CaseData& data) {
    const CaseResult real = Run(data, Backend::kCpu, DType::kF32);
    MetaMeter meter;
    const CaseResult dry = Run(data, Backend::kMeta, DType::kF32);
    for (const auto& [name, array] : real.outputs)
      EXPECT_EQ(dry.outputs.at(name).shape, array.shape);
    for (const auto& [name, array] : real.grads) EXPECT_EQ(dry.grads.at(name).shape, array.shape);
    EXPECT_GT(meter.flops() + meter.bytes_moved(), 0);
    EXPECT_GT(meter.memory().peak, 0);
    EXPECT_EQ(meter.memory().live, 0) << "tensors outlive the run";
    if (!real.grads.empty()) {
      EXPECT_GT(meter.flops(), 0);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Operators, OperatorCase, testing::ValuesIn(AllOpCases()),
                         [](const auto& info) { return std::string(info.param.op); });

}  // namespace
}  // namespace lt2
