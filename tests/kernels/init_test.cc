// Initial values: moments, ranges, and independence of layout.
#include "kernels/init.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/hash.h"
#include "core/philox.h"
#include "kernels/cut_normals.h"

namespace lt2 {
namespace {

constexpr uint64_t kSeed = 1234;
constexpr Device kCpuDevice{Backend::kCpu};

std::vector<double> Fill(const ParamSpec& spec, const Box& box, uint64_t seed = kSeed,
                         DType dtype = DType::kF64) {
  Tensor value = Tensor::Empty(box.extent, dtype, kCpuDevice);
  InitTensor(spec, box, seed, value);
  return value.ToDoubles();
}

std::vector<double> Fill(const ParamSpec& spec) { return Fill(spec, Box::Whole(spec.shape)); }

ParamSpec Spec(Init::Kind kind, double a, double b, const Shape& shape,
               const std::string& name = "layers.0.ffn.up.weight") {
  return {.name = name, .shape = shape, .init = {.kind = kind, .a = a, .b = b}};
}

struct Moments {
  double mean = 0, variance = 0, low, high;
};

Moments MomentsOf(const std::vector<double>& x) {
  Moments m{.low = *std::min_element(x.begin(), x.end()),
            .high = *std::max_element(x.begin(), x.end())};
  for (double v : x) m.mean += v / x.size();
  for (double v : x) m.variance += (v - m.mean) * (v - m.mean) / x.size();
  return m;
}

TEST(NormalQuantile, InvertsTheDistributionFunction) {
  for (double x = -3.7; x <= 3.7; x += 0.01) {
    const double p = std::erfc(-x / std::sqrt(2.0)) / 2;
    const double density = std::exp(-x * x / 2) / std::sqrt(2 * M_PI);
    EXPECT_NEAR(NormalQuantile(p), x, 2e-16 * p / density + 2e-15) << p;
  }
  EXPECT_NEAR(NormalQuantile(0.975), 1.959963984540054, 1e-15);
  EXPECT_NEAR(NormalQuantile(0.5), 0, 1e-16);
}

TEST(Init, TruncatedNormal) {
  constexpr double kStd = 0.02;
  const ParamSpec spec = Spec(Init::Kind::kTruncatedNormal, kStd, 0, {500, 400});
  const std::vector<double> x = Fill(spec);
  const Moments m = MomentsOf(x);
  const double standard_error = kStd / std::sqrt(200000.0);
  EXPECT_NEAR(m.mean, 0, 4 * standard_error);
  // A normal cut at 3 standard deviations keeps 0.97334 of its variance.
  EXPECT_NEAR(m.variance / (kStd * kStd), 0.97334, 0.013);
  EXPECT_GE(m.low, -3 * kStd);
  EXPECT_LE(m.high, 3 * kStd);
  EXPECT_LT(m.low, -2.9 * kStd);
  EXPECT_GT(m.high, 2.9 * kStd);
  // Kolmogorov-Smirnov against the cut distribution: 1.95 / sqrt(n) is passed 99.9 % of the time.
  std::vector<double> sorted = x;
  std::sort(sorted.begin(), sorted.end());
  const auto cdf = [](double z) { return std::erfc(-z / std::sqrt(2.0)) / 2; };
  double worst = 0;
  for (size_t i = 0; i < sorted.size(); ++i) {
    const double want = (cdf(sorted[i] / kStd) - cdf(-3)) / (1 - 2 * cdf(-3));
    worst = std::max(worst, std::abs((i + 0.5) / sorted.size() - want));
  }
  EXPECT_LT(worst, 1.95 / std::sqrt(double(sorted.size())));
  // Neighbours share a draw of four words and must not be correlated for it.
  for (size_t lag = 1; lag <= 4; ++lag) {
    double covariance = 0;
    for (size_t i = lag; i < x.size(); ++i) covariance += x[i] * x[i - lag] / x.size();
    EXPECT_LT(std::abs(covariance) / m.variance, 4.5 / std::sqrt(double(x.size()))) << lag;
  }
}

TEST(Init, OtherKinds) {
  const Shape shape{20000};
  for (double x : Fill(Spec(Init::Kind::kZeros, 0, 0, shape))) ASSERT_EQ(x, 0);
  for (double x : Fill(Spec(Init::Kind::kOnes, 0, 0, shape))) ASSERT_EQ(x, 1);

  const Moments uniform = MomentsOf(Fill(Spec(Init::Kind::kUniform, -0.5, 0.5, shape)));
  EXPECT_NEAR(uniform.mean, 0, 0.01);
  EXPECT_NEAR(uniform.variance, 1.0 / 12, 0.003);
  EXPECT_GE(uniform.low, -0.5);
  EXPECT_LT(uniform.high, 0.5);

  std::vector<double> a = Fill(Spec(Init::Kind::kLogUniform, 1, 16, shape));
  for (double& x : a) x = std::exp(x);
  const Moments log_uniform = MomentsOf(a);
  EXPECT_NEAR(log_uniform.mean, 8.5, 0.15);
  EXPECT_GE(log_uniform.low, 1);
  EXPECT_LE(log_uniform.high, 16);

  const std::vector<double> line = Fill(Spec(Init::Kind::kLinear, 3, 0.5, {2, 2}));
  EXPECT_EQ(line, (std::vector<double>{3, 3.5, 4, 4.5}));

  std::vector<double> dt = Fill(Spec(Init::Kind::kInverseSoftplusLogUniform, 0.001, 0.1, shape));
  for (double& x : dt) x = std::log(std::log1p(std::exp(x)));
  const Moments log_dt = MomentsOf(dt);
  EXPECT_NEAR(log_dt.mean, std::log(0.01), 0.05);
  EXPECT_GE(log_dt.low, std::log(0.001) - 1e-9);
  EXPECT_LE(log_dt.high, std::log(0.1) + 1e-9);
  EXPECT_NEAR(log_dt.variance, std::pow(std::log(100.0), 2) / 12, 0.05);
}

// Any cut into boxes holds the bits of the whole, in every dtype.
TEST(Init, BoxesHoldTheBitsOfTheWhole) {
  const ParamSpec spec = Spec(Init::Kind::kTruncatedNormal, 0.1, 0, {7, 6, 11});
  for (DType dtype : {DType::kF32, DType::kF64}) {
    const std::vector<double> whole = Fill(spec, Box::Whole(spec.shape), kSeed, dtype);
    for (int64_t cut0 : {0, 3, 7}) {
      for (int64_t cut1 : {1, 4}) {
        for (int64_t cut2 : {2, 5, 11}) {
          const Box box{{7 - cut0 > 0 ? cut0 : 0, cut1, 0}, {7 - cut0 > 0 ? 7 - cut0 : 7, 2, cut2}};
          const std::vector<double> part = Fill(spec, box, kSeed, dtype);
          ForEachRun(Box::Whole(spec.shape), box, [&](int64_t a, int64_t b, int64_t n) {
            for (int64_t i = 0; i < n; ++i) ASSERT_EQ(whole[a + i], part[b + i]);
          });
        }
      }
    }
    const Box columns{{0, 0, 9}, {7, 6, 2}};
    const std::vector<double> last = Fill(spec, columns, kSeed, dtype);
    EXPECT_EQ(last[0], whole[9]);
    EXPECT_EQ(last[3], whole[21]);
    EXPECT_EQ(last.back(), whole.back());
  }
}

// float32 is the double rounded, not another draw.
TEST(Init, DtypesRoundTheSameNumber) {
  const ParamSpec spec = Spec(Init::Kind::kTruncatedNormal, 0.1, 0, {1000});
  const std::vector<double> wide = Fill(spec);
  const std::vector<double> narrow = Fill(spec, Box::Whole(spec.shape), kSeed, DType::kF32);
  for (size_t i = 0; i < wide.size(); ++i) ASSERT_EQ(narrow[i], static_cast<float>(wide[i]));
}

// At the edges of every part, and inside.
TEST(CutNormals, AreAsExactAsTheySay) {
  const CutNormals& table = CutNormals::Get();
  double most = 0;
  for (uint64_t part = 0; part < 4096; ++part) {
    for (int i = 0; i <= 32; ++i) {
      const uint64_t offset = std::min<uint64_t>(uint64_t{i} << 15, (1 << 20) - 1);
      const auto word = static_cast<uint32_t>((part << 20) + offset);
      const double off = std::abs(table.At(word) - CutNormalQuantile(OpenUniform(word)));
      most = std::max(most, off);
    }
  }
  EXPECT_LT(most, CutNormals::kOff / 2);
}

// Also where the table does not settle a rounding, as of numbers near 0 or of an odd scale.
TEST(Init, FloatsOfTheTableAreThoseOfTheFormula) {
  constexpr int64_t kSize = 200000;
  for (const double scale : {0.02, 1.0, 3e5, 7e-39, -0.3, 0.0}) {
    const ParamSpec spec = Spec(Init::Kind::kTruncatedNormal, scale, 0, {kSize});
    const std::vector<double> fast = Fill(spec, {{3}, {kSize - 3}}, kSeed, DType::kF32);
    for (size_t i = 0; i < fast.size(); ++i) {
      const double exact =
          InitialValue(spec.init, kSeed, Hash64(spec.name), static_cast<int64_t>(i) + 3);
      ASSERT_EQ(fast[i], static_cast<float>(exact)) << scale << " at " << i;
    }
  }
}

TEST(Init, DependsOnNameAndSeed) {
  const auto fill = [](const std::string& name, uint64_t seed) {
    const ParamSpec spec = Spec(Init::Kind::kUniform, 0, 1, {64}, name);
    return Fill(spec, Box::Whole(spec.shape), seed);
  };
  const std::vector<double> base = fill("layers.0.norm", 1);
  EXPECT_EQ(base, fill("layers.0.norm", 1));
  for (const std::vector<double>& other : {fill("layers.1.norm", 1), fill("layers.0.norm", 2)}) {
    int equal = 0;
    for (size_t i = 0; i < base.size(); ++i) equal += base[i] == other[i];
    EXPECT_EQ(equal, 0);
  }
}

TEST(Init, EmptyBoxAndDryRun) {
  const ParamSpec spec = Spec(Init::Kind::kOnes, 0, 0, {4, 5});
  EXPECT_TRUE(Fill(spec, {{4, 0}, {0, 5}}).empty());
  InitTensor(spec, Box::Whole(spec.shape), 0, Tensor::Empty({4, 5}, DType::kF32, {Backend::kMeta}));
}

}  // namespace
}  // namespace lt2
