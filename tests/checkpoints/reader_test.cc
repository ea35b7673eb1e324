#include "checkpoints/reader.h"

#include <gtest/gtest.h>

#include "core/status_macros.h"
#include "tests/checkpoints/saving.h"
#include "tests/support/temporary_directory.h"

namespace lt2 {
namespace {

class ReaderTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto saved = SaveSample(directory_.path(), 1, 9, 3);
    ASSERT_TRUE(saved.ok()) << saved.status();
    path_ = saved->path;
  }
  absl::Status Load(const SampleTensor& tensor, const LoadOptions& options = {}) {
    auto checkpoint = Checkpoint::Open(path_);
    RETURN_IF_ERROR(checkpoint.status());
    TensorPiece piece = EmptyPiece(tensor, Box::Whole(tensor.shape));
    return checkpoint->Load({&piece, 1}, options);
  }

  TemporaryDirectory directory_;
  std::string path_;
};

TEST_F(ReaderTest, NamesWhatIsMissing) {
  const absl::Status status = Load({"param", "layers.7.norm1.weight", DType::kF32, {16}});
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_NE(status.message().find("param/layers.7.norm1.weight"), std::string::npos) << status;
}

TEST_F(ReaderTest, NamesBothShapes) {
  const absl::Status status = Load({"param", "embed.weight", DType::kF32, {40, 16}});
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_NE(status.message().find("[37, 16]"), std::string::npos) << status;
  EXPECT_NE(status.message().find("[40, 16]"), std::string::npos) << status;
}

TEST_F(ReaderTest, ConvertsFloatsOnlyWhenAsked) {
  const SampleTensor as_double{"param", "embed.weight", DType::kF64, {37, 16}};
  EXPECT_TRUE(absl::IsInvalidArgument(Load(as_double)));

  auto checkpoint = Checkpoint::Open(path_);
  TensorPiece piece = EmptyPiece(as_double, {{3, 2}, {20, 9}});
  ASSERT_TRUE(checkpoint->Load({&piece, 1}, {.convert = true}).ok());
  const SampleTensor stored{"param", "embed.weight", DType::kF32, {37, 16}};
  EXPECT_EQ(piece.tensor.ToDoubles(), SamplePiece(stored, piece.box, 9).tensor.ToDoubles());
}

TEST_F(ReaderTest, AMissingOrEmptyRootHasNoCheckpoint) {
  const auto ignore = [](const std::string&) {};
  EXPECT_TRUE(absl::IsNotFound(FindNewestSound("/nonexistent/run", ignore).status()));
  EXPECT_TRUE(absl::IsNotFound(ResolveCheckpoint("/nonexistent/run", ignore).status()));
  EXPECT_TRUE(absl::IsNotFound(CheckpointsAt("/nonexistent/run").status()));
  TemporaryDirectory empty;
  EXPECT_TRUE(absl::IsNotFound(CheckpointsAt(empty.path()).status()));
  EXPECT_TRUE(absl::IsNotFound(ListCheckpoints("/nonexistent/run", false).status()));
}

TEST_F(ReaderTest, ListsAndResolvesWhatAUserNames) {
  const auto ignore = [](const std::string&) {};
  EXPECT_EQ(ResolveCheckpoint(path_, ignore).value(), path_);
  EXPECT_EQ(ResolveCheckpoint(directory_.path(), ignore).value(), path_);
  EXPECT_EQ(CheckpointsAt(path_).value(), std::vector<std::string>{path_});
  for (const std::string& named : {path_, directory_.path()}) {
    const auto rows = ListCheckpoints(named, true);
    ASSERT_TRUE(rows.ok()) << rows.status();
    ASSERT_EQ(rows->size(), 1u);
    EXPECT_EQ((*rows)[0].directory.step, 1);
    EXPECT_EQ((*rows)[0].info.mesh, "dp=2");
    EXPECT_EQ((*rows)[0].tensors, 19);
    EXPECT_TRUE((*rows)[0].soundness.ok());
  }
}

TEST_F(ReaderTest, ARunsCheckpointsComeNewestFirst) {
  const std::string newer = SaveSample(directory_.path(), 11, 9, 1).value().path;
  const std::string older = SaveSample(directory_.path(), 0, 9, 1).value().path;
  EXPECT_EQ(CheckpointsAt(directory_.path()).value(),
            (std::vector<std::string>{newer, path_, older}));
}

TEST(StepName, IsTenDigitsAndReadsBack) {
  EXPECT_EQ(StepName(1000), "step-0000001000");
  EXPECT_EQ(StepOfName("step-0000001000"), 1000);
  EXPECT_EQ(StepOfName("step-12345678901"), 12345678901);
  for (const char* other : {"step-1000", "step-0000001000.tmp-a", "step--000001000", "steps", ""}) {
    EXPECT_EQ(StepOfName(other), std::nullopt) << other;
  }
}

}  // namespace
}  // namespace lt2
