#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "checkpoints/index_file.h"
#include "core/hdf5.h"
#include "tests/checkpoints/saving.h"
#include "tests/support/temporary_directory.h"

namespace lt2 {
namespace {

std::vector<double> ReadWhole(const std::string& index, const SampleTensor& tensor) {
  const auto file = h5::File::Open(index);
  EXPECT_TRUE(file.ok()) << file.status();
  std::vector<double> values(tensor.shape.size());
  const absl::Status read = file->Read(tensor.path(), h5::Type::kF64, values.data());
  EXPECT_TRUE(read.ok()) << read;
  return values;
}

TEST(Index, ShowsEveryTensorWhole) {
  TemporaryDirectory directory;
  const auto saved = SaveSample(directory.path(), 1, 11, 4);
  ASSERT_TRUE(saved.ok()) << saved.status();
  for (const SampleTensor& tensor : SampleTensors()) {
    const Tensor expected = SamplePiece(tensor, Box::Whole(tensor.shape), 11).tensor;
    EXPECT_EQ(ReadWhole(JoinPath(saved->path, kIndexFile), tensor), expected.ToDoubles());
  }
}

TEST(Index, AMissingOrForeignShardReadsAsNan) {
  TemporaryDirectory directory;
  const auto saved = SaveSample(directory.path(), 1, 11, 2);
  const auto other = SaveSample(directory.path(), 2, 12, 2);
  ASSERT_TRUE(saved.ok() && other.ok());
  const std::string shard = JoinPath(saved->path, ShardName(1));
  const SampleTensor tensor = SampleTensors()[0];
  const std::string index = JoinPath(saved->path, kIndexFile);
  const auto manifest = ReadManifest(saved->path);
  int64_t elements_there = 0;
  for (const StoredBox& stored : manifest->Find(tensor.path())->boxes) {
    if (stored.file == ShardName(1)) elements_there += stored.box.size();
  }
  ASSERT_GT(elements_there, 0);

  const auto count_nan = [&] {
    int64_t count = 0;
    for (double value : ReadWhole(index, tensor)) count += std::isnan(value);
    return count;
  };
  std::filesystem::copy_file(JoinPath(other->path, ShardName(1)), shard,
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_EQ(count_nan(), elements_there);
  std::filesystem::remove(shard);
  EXPECT_EQ(count_nan(), elements_there);
}

TEST(Index, H5pyReadsItAndAMovedCheckpointToo) {
  if (std::system("/usr/bin/python3 -c 'import h5py' 2>/dev/null") != 0) {
    GTEST_SKIP() << "no h5py for /usr/bin/python3";
  }
  TemporaryDirectory directory;
  const auto saved = SaveSample(directory.path(), 1, 13, 3);
  ASSERT_TRUE(saved.ok());
  const std::string moved = JoinPath(directory.path(), "moved");
  ASSERT_TRUE(FileSystem::Get().Rename(saved->path, moved).ok());
  const std::string out = JoinPath(directory.path(), "values");
  const std::string command =
      "cd / && /usr/bin/python3 -c 'import h5py; h5py.File(\"" + JoinPath(moved, kIndexFile) +
      "\")[\"param/layers.0.mixer.q_proj.weight\"][...].tofile(\"" + out + "\")'";
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  const SampleTensor tensor{"param", "layers.0.mixer.q_proj.weight", DType::kF32, {24, 16}};
  const Tensor expected = SamplePiece(tensor, Box::Whole(tensor.shape), 13).tensor;
  const std::string bytes = FileSystem::Get().ReadFile(out).value();
  EXPECT_EQ(bytes, std::string(static_cast<const char*>(expected.raw()), expected.bytes()));
}

}  // namespace
}  // namespace lt2
