#include "data/mixture.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/philox.h"

namespace lt2 {
namespace {

// Every source's indices count 0, 1, 2, …; Count agrees; along each split the count is within one
// of its share of what reaches that split.
void Check(const std::vector<double>& weights, int64_t samples) {
  const Mixture mixture(weights);
  const int sources = static_cast<int>(weights.size());
  std::vector<int64_t> given(sources, 0);
  for (int64_t i = 0; i < samples; ++i) {
    if (i < 1000 || i % 997 == 0) {
      double rest = 0;
      for (double w : weights) rest += w;
      int64_t reaching = i;
      for (int s = 0; s < sources; ++s) {
        ASSERT_EQ(mixture.Count(s, i), given[s]) << "source " << s << " sample " << i;
        ASSERT_LT(std::abs(given[s] - reaching * weights[s] / rest), 1 + 1e-6)
            << "source " << s << " sample " << i;
        reaching -= given[s];
        rest -= weights[s];
      }
    }
    const Mixture::Choice choice = mixture(i);
    ASSERT_TRUE(choice.source >= 0 && choice.source < sources);
    ASSERT_EQ(choice.index, given[choice.source]++) << "sample " << i;
  }
}

TEST(Mixture, OneSourceTakesEverything) { Check({3.5}, 1000); }
TEST(Mixture, EqualWeightsTakeTurns) {
  Check({1, 1}, 100'000);
  Check({1, 1, 1, 1}, 100'000);
}
TEST(Mixture, UnequalWeights) {
  Check({0.7, 0.2, 0.1}, 100'000);
  Check({1e-4, 1}, 100'000);
  Check({1, 1e-4, 1e-4}, 100'000);
}

TEST(Mixture, RandomWeights) {
  const uint64_t seed = 11;
  for (uint64_t trial = 0; trial < 20; ++trial) {
    SCOPED_TRACE(testing::Message() << "seed " << seed << " trial " << trial);
    std::vector<double> weights(1 + Philox(seed, trial)[0] % 7);
    for (size_t s = 0; s < weights.size(); ++s) {
      weights[s] = OpenUniform(Philox(seed, trial, s + 1)[0]);
    }
    Check(weights, 5000);
  }
}

TEST(Mixture, FarSamplesCountOnWithoutGaps) {
  const Mixture mixture(std::vector<double>{0.3, 0.3, 0.4});
  const int64_t start = (int64_t{1} << 60) + 17;
  std::vector<int64_t> next(3);
  for (int s = 0; s < 3; ++s) next[s] = mixture.Count(s, start);
  EXPECT_EQ(next[0] + next[1] + next[2], start);
  for (int64_t i = start; i < start + 1000; ++i) {
    const Mixture::Choice choice = mixture(i);
    EXPECT_EQ(choice.index, next[choice.source]++);
  }
}

}  // namespace
}  // namespace lt2
