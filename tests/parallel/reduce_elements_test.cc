#include "parallel/reduce_elements.h"

#include <gtest/gtest.h>

#include <vector>

namespace lt2 {
namespace {

template <class T>
std::vector<T> Reduced(const std::vector<std::vector<T>>& ranks, DType dtype, Reduction op) {
  std::vector<const void*> in;
  for (const std::vector<T>& rank : ranks) in.push_back(rank.data());
  std::vector<T> out(ranks[0].size());
  ReduceInOrder(in, out.data(), static_cast<int64_t>(out.size()), dtype, op);
  return out;
}

std::vector<BFloat16> Narrow(const std::vector<float>& values) {
  std::vector<BFloat16> narrow;
  for (float value : values) narrow.push_back(BFloat16::Of(value));
  return narrow;
}

// 256 + 1 is not a number of bf16, 256 + 1 + 1 is: what was rounded after each rank would stay 256.
TEST(ReduceInOrder, SumsOfBf16AreRoundedOnce) {
  const std::vector<std::vector<BFloat16>> ranks = {Narrow({256, 1, -3}), Narrow({1, 0.5, 5}),
                                                    Narrow({1, 0.25, 4})};
  const std::vector<BFloat16> sum = Reduced(ranks, DType::kBF16, Reduction::kSum);
  EXPECT_EQ(std::vector<float>(sum.begin(), sum.end()), (std::vector<float>{258, 1.75, 6}));
  const std::vector<BFloat16> least = Reduced(ranks, DType::kBF16, Reduction::kMin);
  EXPECT_EQ(std::vector<float>(least.begin(), least.end()), (std::vector<float>{1, 0.25, -3}));
  const std::vector<BFloat16> most = Reduced(ranks, DType::kBF16, Reduction::kMax);
  EXPECT_EQ(std::vector<float>(most.begin(), most.end()), (std::vector<float>{256, 1, 5}));
}

// (1e8 + 1) - 1e8 is 0 in float32, and (1e8 - 1e8) + 1 is 1; longer than a block of the loop.
TEST(ReduceInOrder, FollowsTheOrderOfRanksInEveryElement) {
  constexpr int kSize = 3001;
  std::vector<std::vector<float>> ranks(3, std::vector<float>(kSize));
  std::vector<float> want(kSize);
  for (int i = 0; i < kSize; ++i) {
    const bool last = i % 3 == 0;
    ranks[0][i] = 1e8F;
    ranks[1][i] = last ? -1e8F : 1;
    ranks[2][i] = last ? 1 : -1e8F;
    want[i] = last ? 1 : 0;
  }
  EXPECT_EQ(Reduced(ranks, DType::kF32, Reduction::kSum), want);
}

}  // namespace
}  // namespace lt2
