#include "checkpoints/tensor_stream.h"

#include <gtest/gtest.h>

#include "core/status_macros.h"
#include "tests/checkpoints/saving.h"
#include "tests/support/temporary_directory.h"

namespace lt2 {
namespace {

// All rows of a tensor, one stretch after another.
absl::StatusOr<std::vector<double>> Stream(const Checkpoint& checkpoint, const StoredTensor& tensor,
                                           int64_t rows) {
  std::vector<double> values;
  TensorStream stream(checkpoint, tensor, rows);
  while (!stream.done()) {
    ASSIGN_OR_RETURN(const TensorRows part, stream.Next());
    EXPECT_LE(part.box.extent[0], rows);
    const std::vector<double> more = part.ToDoubles();
    values.insert(values.end(), more.begin(), more.end());
  }
  return values;
}

TEST(TensorStream, GivesEveryTensorInAnySteps) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    TemporaryDirectory directory;
    const auto saved = SaveSample(directory.path(), 1, seed, 1 + static_cast<int>(seed % 5));
    const auto checkpoint = Checkpoint::Open(saved->path);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    Dice dice(seed);
    for (const SampleTensor& sample : SampleTensors()) {
      const StoredTensor& tensor = *checkpoint->manifest().Find(sample.path());
      const auto values = Stream(*checkpoint, tensor, 1 + dice.Below(sample.shape[0]));
      ASSERT_TRUE(values.ok()) << values.status();
      EXPECT_EQ(*values, SamplePiece(sample, Box::Whole(sample.shape), seed).tensor.ToDoubles());
    }
  }
}

TEST(TensorStream, ADamagedBoxIsNamedAndNoByteIsReadTwice) {
  TemporaryDirectory directory;
  const auto saved = SaveSample(directory.path(), 1, 4, 3, {}, /*scale=*/20);
  const auto checkpoint = Checkpoint::Open(saved->path);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const StoredTensor& tensor = *checkpoint->manifest().Find("param/embed.weight");
  const int64_t before = checkpoint->bytes_read();
  ASSERT_TRUE(Stream(*checkpoint, tensor, 7).ok());
  EXPECT_EQ(checkpoint->bytes_read() - before, tensor.bytes());

  const StoredBox& box = tensor.boxes.back();
  const auto file = ByteFile::OpenToWrite(JoinPath(saved->path, box.file));
  ASSERT_TRUE(file.ok()) << file.status();
  std::byte last{};
  ASSERT_TRUE(checkpoint->file(box.file).Read(box.offset, {&last, 1}).ok());
  last ^= std::byte{1};
  ASSERT_TRUE(file->Write(box.offset, {&last, 1}).ok());
  for (int64_t rows : {1, 7, 1000000}) {
    const absl::Status status = Stream(*checkpoint, tensor, rows).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_NE(status.message().find(box.file + ": param/embed.weight"), std::string::npos);
  }
}

}  // namespace
}  // namespace lt2
