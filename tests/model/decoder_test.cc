#include "model/decoder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

namespace lt2 {
namespace {

const std::vector<double> kLogits = {0.0, 2.0, 1.0, 2.0, -5.0};

std::map<int32_t, int> Count(const SampleOptions& options, int draws) {
  std::map<int32_t, int> counts;
  for (int i = 0; i < draws; ++i) ++counts[SampleToken(kLogits, options, i)];
  return counts;
}

TEST(SampleToken, ZeroTemperatureTakesTheFirstOfTheBest) {
  EXPECT_EQ(SampleToken(kLogits, {.temperature = 0}, 0), 1);
}

TEST(SampleToken, FrequenciesFollowTheSoftmax) {
  const int draws = 20000;
  const auto counts = Count({.seed = 5}, draws);
  double sum = 0;
  for (double logit : kLogits) sum += std::exp(logit);
  for (size_t i = 0; i < kLogits.size(); ++i) {
    const double want = std::exp(kLogits[i]) / sum;
    const auto found = counts.find(static_cast<int32_t>(i));
    const double got = found == counts.end() ? 0 : found->second / static_cast<double>(draws);
    EXPECT_NEAR(got, want, 4 * std::sqrt(want * (1 - want) / draws) + 1e-9);
  }
}

TEST(SampleToken, TopKAndTopPCutTheTail) {
  for (const auto& [id, count] : Count({.top_k = 2}, 500)) EXPECT_TRUE(id == 1 || id == 3);
  // The two best hold about 0.79 of the probability; 0.5 needs both, 0.3 only the first.
  EXPECT_EQ(Count({.top_p = 0.5}, 500).size(), 2u);
  EXPECT_EQ(Count({.top_p = 0.3}, 500).size(), 1u);
}

TEST(SampleToken, IsAFunctionOfSeedAndDraw) {
  EXPECT_EQ(SampleToken(kLogits, {.seed = 3}, 17), SampleToken(kLogits, {.seed = 3}, 17));
  EXPECT_NE(Count({.seed = 3}, 50), Count({.seed = 4}, 50));
}

}  // namespace
}  // namespace lt2
