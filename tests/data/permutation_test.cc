#include "data/permutation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace lt2 {
namespace {

std::vector<int64_t> All(uint64_t key, int64_t n) {
  const Permutation order(key, n);
  std::vector<int64_t> values(n);
  for (int64_t i = 0; i < n; ++i) values[i] = order(i);
  return values;
}

class PermutationOf : public ::testing::TestWithParam<int64_t> {};

TEST_P(PermutationOf, IsABijection) {
  const int64_t n = GetParam();
  for (uint64_t key : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}}) {
    std::vector<bool> seen(n);
    for (const int64_t value : All(key, n)) {
      ASSERT_TRUE(value >= 0 && value < n) << value;
      ASSERT_FALSE(seen[value]) << value << " twice, key " << key;
      seen[value] = true;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, PermutationOf,
                         ::testing::Values(1, 2, 3, 4, 5, 7, 16, 17, 64, 65, 255, 256, 257, 1000,
                                           4096, 65536, 65537, 1000003));

TEST(Permutation, KeysDiffer) {
  EXPECT_EQ(All(1, 1000), All(1, 1000));
  const std::vector<int64_t> a = All(1, 1000), b = All(2, 1000);
  int same = 0;
  for (int i = 0; i < 1000; ++i) same += a[i] == b[i];
  EXPECT_LT(same, 10);  // one is expected
}

TEST(Permutation, KeepsNoOrder) {
  // Correlation of place and value is about 1/sqrt(n) for a random order.
  const int64_t n = 20000;
  for (uint64_t key = 0; key < 5; ++key) {
    const std::vector<int64_t> order = All(key, n);
    double sum = 0;
    const double mean = (n - 1) / 2.0, variance = (double(n) * n - 1) / 12;
    for (int64_t i = 0; i < n; ++i) sum += (i - mean) * (order[i] - mean);
    EXPECT_LT(std::abs(sum / n / variance), 4 / std::sqrt(n)) << "key " << key;
  }
}

TEST(Permutation, LargeRangesStayInside) {
  const int64_t n = (int64_t{1} << 61) + 12345;
  const Permutation order(99, n);
  for (int64_t i : {int64_t{0}, int64_t{1}, n / 2, n - 1}) {
    EXPECT_GE(order(i), 0);
    EXPECT_LT(order(i), n);
  }
}

}  // namespace
}  // namespace lt2
