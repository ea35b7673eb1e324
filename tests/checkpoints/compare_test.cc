#include "checkpoints/compare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/checkpoints/saving.h"
#include "tests/support/temporary_directory.h"

namespace lt2 {
namespace {

using Kind = TensorDifference::Kind;

// A checkpoint of one rank with these tensors, each whole.
Checkpoint Saved(const std::string& root, int64_t step, std::span<const TensorPiece> pieces) {
  const auto world = MakeGroupOfOne();
  Writer writer(root, *world, {});
  CHECK(writer.Begin(SampleInfo(step), pieces).ok());
  const auto saved = writer.Publish();
  CHECK(saved.ok()) << saved.status();
  return Checkpoint::Open(saved->path).value();
}

TensorPiece Piece(const std::string& name, const Shape& shape, const std::vector<float>& values) {
  TensorPiece piece = EmptyPiece({"param", name, DType::kF32, shape}, Box::Whole(shape));
  std::copy(values.begin(), values.end(), piece.tensor.data<float>());
  return piece;
}

TEST(Compare, TheSameStateFromOtherRanksIsEqual) {
  TemporaryDirectory directory;
  const auto a = SaveSample(directory.path(), 1, 5, 1), b = SaveSample(directory.path(), 2, 5, 4);
  const auto first = Checkpoint::Open(a->path), second = Checkpoint::Open(b->path);
  const auto differences = Compare(*first, *second);
  ASSERT_TRUE(differences.ok()) << differences.status();
  ASSERT_EQ(differences->size(), SampleTensors().size());
  for (const TensorDifference& tensor : *differences) {
    EXPECT_TRUE(tensor.equal()) << tensor.path;
    EXPECT_GT(tensor.elements, 0);
    EXPECT_EQ(tensor.max_abs, 0);
    EXPECT_EQ(tensor.distance, 0);
  }
}

TEST(Compare, SaysHowFarAndWhatIsMissing) {
  TemporaryDirectory directory;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Checkpoint first =
      Saved(directory.path(), 1,
            std::vector{Piece("a", {2, 2}, {3, 0, 0, 4}), Piece("b", {2}, {1, nan}),
                        Piece("c", {2}, {0.0f, 1}), Piece("d", {3}, {1, 2, 3}),
                        Piece("gone", {1}, {1}), Piece("n", {2}, {1, nan})});
  const Checkpoint second =
      Saved(directory.path(), 2,
            std::vector{Piece("a", {2, 2}, {3, 0, 1, 4.5f}), Piece("b", {2}, {2, 7}),
                        Piece("c", {2}, {-0.0f, 1}), Piece("d", {3, 1}, {1, 2, 3}),
                        Piece("n", {2}, {1, nan}), Piece("new", {1}, {1})});
  for (int threads : {1, 3}) {
    const auto result = Compare(first, second, {.threads = threads});
    ASSERT_TRUE(result.ok()) << result.status();
    const std::vector<TensorDifference>& t = *result;
    ASSERT_EQ(t.size(), 7u);
    EXPECT_EQ(t[0].path, "param/a");
    EXPECT_EQ(t[0].different, 2);
    EXPECT_EQ(t[0].max_abs, 1.0);
    EXPECT_DOUBLE_EQ(t[0].distance, std::sqrt(1.25) / 5);
    EXPECT_TRUE(std::isnan(t[1].max_abs) && std::isnan(t[1].distance)) << t[1].max_abs;
    EXPECT_EQ(t[1].different, 2);
    // The zeros are as near as can be, and yet not the same bits.
    EXPECT_EQ(t[2].different, 1);
    EXPECT_EQ(t[2].max_abs, 0);
    EXPECT_FALSE(t[2].equal());
    EXPECT_EQ(t[3].kind, Kind::kOtherShape);
    EXPECT_EQ(t[3].first + t[3].second, "f32 [3]f32 [3, 1]");
    EXPECT_EQ(t[4].kind, Kind::kOnlyInFirst);
    EXPECT_TRUE(t[5].equal()) << "a NaN is equal to its own bits";
    EXPECT_EQ(t[6].kind, Kind::kOnlyInSecond);
    EXPECT_EQ(t[6].path, "param/new");
  }
}

}  // namespace
}  // namespace lt2
