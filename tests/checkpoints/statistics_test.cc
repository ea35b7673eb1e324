#include "checkpoints/statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/checkpoints/saving.h"
#include "tests/support/temporary_directory.h"

namespace lt2 {
namespace {

TEST(Statistics, AreThoseOfTheWholeTensor) {
  TemporaryDirectory directory;
  constexpr uint64_t kSeed = 8;
  const auto saved = SaveSample(directory.path(), 1, kSeed, 4);
  const auto checkpoint = Checkpoint::Open(saved->path);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto statistics = StatisticsOf(*checkpoint, {.threads = 3});
  ASSERT_TRUE(statistics.ok()) << statistics.status();
  for (const SampleTensor& sample : SampleTensors()) {
    const StoredTensor* stored = checkpoint->manifest().Find(sample.path());
    const TensorStatistics& of = (*statistics)[stored - checkpoint->manifest().tensors.data()];
    double squares = 0, most = 0;
    std::map<int, int64_t> exponents;
    const Box whole = Box::Whole(sample.shape);
    for (double value : SamplePiece(sample, whole, kSeed).tensor.ToDoubles()) {
      squares += value * value;
      most = std::max(most, std::abs(value));
      if (value != 0) ++exponents[static_cast<int>(std::floor(std::log2(std::abs(value))))];
    }
    EXPECT_EQ(of.elements, sample.shape.size());
    EXPECT_EQ(of.not_finite, 0);
    // Squares are added with or without a rounding of their own: that is the compiler's choice.
    EXPECT_NEAR(of.norm, std::sqrt(squares), 1e-14 * of.norm) << sample.path();
    EXPECT_EQ(of.max_abs, most);
    EXPECT_EQ(of.exponents, exponents);
  }
}

TEST(Statistics, CountWhatIsNotFinite) {
  TemporaryDirectory directory;
  const SampleTensor tensor{"param", "w", DType::kF32, {6}};
  TensorPiece piece = EmptyPiece(tensor, Box::Whole(tensor.shape));
  const float infinity = std::numeric_limits<float>::infinity();
  const float values[] = {0, -3, infinity, std::nanf(""), 4, 0x1p-149f};
  std::copy_n(values, 6, piece.tensor.data<float>());
  const auto world = MakeGroupOfOne();
  Writer writer(directory.path(), *world, {});
  ASSERT_TRUE(writer.Begin(SampleInfo(1), {&piece, 1}).ok());
  const auto statistics = StatisticsOf(*Checkpoint::Open(writer.Publish()->path));
  ASSERT_TRUE(statistics.ok()) << statistics.status();
  const TensorStatistics& of = (*statistics)[0];
  EXPECT_EQ(of.not_finite, 2);
  EXPECT_EQ(of.zeros, 1);
  EXPECT_EQ(of.norm, 5);
  EXPECT_EQ(of.max_abs, 4);
  EXPECT_EQ(of.exponents, (std::map<int, int64_t>{{-149, 1}, {1, 1}, {2, 1}}));
  EXPECT_EQ(of.Histogram(), "2^-13 █             ██ 2^3");
}

TEST(Statistics, HistogramsShowEveryColumnThatIsNotEmpty) {
  TensorStatistics of;
  EXPECT_EQ(of.Histogram(), "");
  of.exponents = {{-30, 1}, {-3, 2}, {-2, 800}, {-1, 400}};
  EXPECT_EQ(of.Histogram(4), "2^-4 ▁▁█▄ 2^0");
  of.exponents = {{5, 1}};
  EXPECT_EQ(of.Histogram(), "2^5 █ 2^6");
}

}  // namespace
}  // namespace lt2
