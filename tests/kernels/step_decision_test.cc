// The decision about a step where something is wrong, which its case leaves out: cases compare
// finite numbers alone.
#include "kernels/step_decision.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/adamw.h"

namespace lt2 {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// The report of a step of one rank, and what the update is told.
struct Outcome {
  std::vector<double> report, hyper;
  double at(StepReportIndex i) const { return report[i]; }
  SkipReason skipped() const { return static_cast<SkipReason>(report[kReportSkipped]); }
};

class StepDecisionTest : public testing::TestWithParam<Backend> {
 protected:
  Tensor Make(const std::vector<double>& values) {
    return Tensor::FromHost(values, {static_cast<int64_t>(values.size())}, DType::kF64,
                            stream_.device);
  }
  // Two losses, of which the second counts tokens, and one maximum.
  Outcome Decide(const std::vector<double>& squares, const std::vector<double>& losses,
                 double bad_losses = 0) {
    const Tensor inputs = Make({0.5, 0, bad_losses, 7});
    const Tensor scalars = Tensor::Zeros({1, kScalarOthers + 3}, DType::kF64, stream_.device);
    const Tensor hyper = Make(std::vector<double>(kAdamWHypers, 0.0));
    const Tensor report = Make(std::vector<double>(kReportOthers + 3, 0.0));
    StepScalars(stream_, {.squares = Make(squares),
                          .losses = Make(losses),
                          .tokens_at = 1,
                          .inputs = inputs,
                          .scalars = scalars});
    StepDecision(stream_, {.scalars = scalars,
                           .maxes = 1,
                           .inputs = inputs,
                           .clip = 1,
                           .counters = counters_,
                           .hyper = hyper,
                           .report = report});
    return {report.ToDoubles(), hyper.ToDoubles()};
  }

  Stream stream_{.device = {GetParam()}};
  Tensor counters_ = Tensor::Zeros({kStepCounters}, DType::kF64, stream_.device);
};

TEST_P(StepDecisionTest, AGoodStepIsClippedAndCounted) {
  const Outcome good = Decide({9, 16}, {3, 2});
  EXPECT_EQ(good.skipped(), SkipReason::kNone);
  EXPECT_EQ(good.at(kReportNorm), 2.5);
  EXPECT_DOUBLE_EQ(good.at(kReportClip), 1 / (2.5 + 1e-6));
  EXPECT_EQ(good.hyper, (std::vector<double>{0.5, good.at(kReportClip) / 2, 1, 0}));
  EXPECT_EQ(counters_.ToDoubles()[kCounterNorms], 1);
  EXPECT_EQ(counters_.ToDoubles()[kCounterMean], 2.5);
  EXPECT_EQ(good.report[kReportOthers + 2], 7);  // the maximum
}

TEST_P(StepDecisionTest, WhatIsNotFiniteSkipsAndIsCountedOnce) {
  Decide({9, 16}, {3, 2});
  const std::vector<double> before = counters_.ToDoubles();
  const Outcome gradients = Decide({kNaN, 4, INFINITY}, {3, 2});
  EXPECT_EQ(gradients.skipped(), SkipReason::kNotFinite);
  EXPECT_EQ(gradients.at(kReportBad), 2);
  EXPECT_TRUE(std::isnan(gradients.at(kReportNorm)));
  EXPECT_EQ(gradients.hyper[kSkip], 1);
  const Outcome losses = Decide({1}, {kNaN, 2});
  EXPECT_EQ(losses.skipped(), SkipReason::kNotFinite);
  EXPECT_EQ(losses.at(kReportBad), 1);
  EXPECT_EQ(Decide({1}, {3, 2}, /*bad_losses=*/1).skipped(), SkipReason::kNotFinite);
  std::vector<double> after = counters_.ToDoubles();
  EXPECT_EQ(after[kCounterSkipped], 3);
  EXPECT_EQ(after[kCounterSkippedInRow], 3);
  after[kCounterSkipped] = after[kCounterSkippedInRow] = 0;
  EXPECT_EQ(after, before);
  EXPECT_EQ(Decide({9, 16}, {3, 2}).skipped(), SkipReason::kNone);
  EXPECT_EQ(counters_.ToDoubles()[kCounterSkippedInRow], 0);
}

TEST_P(StepDecisionTest, AStepWithoutTokensSkips) {
  const Outcome none = Decide({0}, {0, 0});
  EXPECT_EQ(none.skipped(), SkipReason::kNoTokens);
  EXPECT_EQ(none.at(kReportNorm), 0);
}

INSTANTIATE_TEST_SUITE_P(Backends, StepDecisionTest,
                         testing::Values(Backend::kCpu, Backend::kReference),
                         [](const auto& info) { return std::string(Name(info.param)); });

}  // namespace
}  // namespace lt2
