#include "kernels/cpu/simd.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace lt2::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The largest error of `fast` over [low, high], in units of the last place of the right answer.
template <class Fast, class Exact>
double WorstUlp(float low, float high, Fast fast, Exact exact) {
  constexpr int kCount = 200'001;
  std::vector<float> x(kCount), y(kCount);
  for (int i = 0; i < kCount; ++i) x[i] = low + (high - low) * (i / float(kCount - 1));
#pragma omp simd
  for (int i = 0; i < kCount; ++i) y[i] = fast(x[i]);
  double worst = 0;
  for (int i = 0; i < kCount; ++i) {
    const double want = exact(static_cast<double>(x[i]));
    const float magnitude = std::abs(static_cast<float>(want));
    const double ulp = std::nextafter(magnitude, kInfinity) - magnitude;
    worst = std::max(worst, std::abs(y[i] - want) / ulp);
  }
  return worst;
}

TEST(Simd, ExpIsWithinOneUlp) {
  const auto fast = [](float x) { return Exp(x); };
  const auto exact = [](double x) { return std::exp(x); };
  EXPECT_LE(WorstUlp(-1, 1, fast, exact), 1);
  EXPECT_LE(WorstUlp(-87, 88.7f, fast, exact), 1);
  EXPECT_LE(WorstUlp(-103.9f, -87, fast, exact), 1) << "denormal results";
}

TEST(Simd, ExpAtTheEdges) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float x[] = {-kInfinity, kInfinity, nan, 0.0f, -0.0f, -1e30f, 1e30f, 89.0f};
  const float want[] = {0, kInfinity, nan, 1, 1, 0, kInfinity, kInfinity};
  float y[8];
#pragma omp simd
  for (int i = 0; i < 8; ++i) y[i] = Exp(x[i]);
  for (int i = 0; i < 8; ++i) {
    if (std::isnan(want[i])) {
      EXPECT_TRUE(std::isnan(y[i]));
    } else {
      EXPECT_EQ(y[i], want[i]) << x[i];
    }
  }
}

TEST(Simd, GateFunctionsAreWithinFourUlp) {
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  EXPECT_LE(WorstUlp(
                -80, 80, [](float x) { return Sigmoid(x); }, sigmoid),
            4);
  EXPECT_LE(WorstUlp(
                -80, 80, [](float x) { return Silu(x); }, [&](double x) { return x * sigmoid(x); }),
            4);
  EXPECT_LE(WorstUlp(
                -80, 30, [](float x) { return SoftPlus(x); },
                [](double x) { return x > 20 ? x : std::log1p(std::exp(x)); }),
            4);
  EXPECT_LE(WorstUlp(
                -30, 80, [](float x) { return LogSigmoid(x); },
                [](double x) { return -std::log1p(std::exp(-x)); }),
            4);
}

TEST(Simd, ExtremeGatesStayFinite) {
  EXPECT_EQ(Sigmoid(-1e30f), 0);
  EXPECT_EQ(Sigmoid(1e30f), 1);
  EXPECT_EQ(Silu(-1e30f), 0);
  EXPECT_EQ(SoftPlus(1e30f), 1e30f);
  EXPECT_EQ(SoftPlus(-1e30f), 0);
  EXPECT_EQ(LogSigmoid(-1e30f), -1e30f);
}

}  // namespace
}  // namespace lt2::cpu
