// Groups of ranks that load a checkpoint together: whatever boxes they want, each byte is read
// once.
#include "checkpoints/loading.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tests/checkpoints/saving.h"
#include "tests/support/temporary_directory.h"

namespace lt2 {
namespace {

// Random boxes of random tensors: some twice, some by several ranks, some by none.
std::vector<std::vector<TensorPiece>> RandomWants(const std::vector<SampleTensor>& tensors,
                                                  int ranks, Dice& dice) {
  std::vector<std::vector<TensorPiece>> pieces(ranks);
  for (std::vector<TensorPiece>& mine : pieces) {
    for (int64_t i = dice.Below(2 * static_cast<int64_t>(tensors.size())); i > 0; --i) {
      const SampleTensor& tensor = tensors[dice.Below(tensors.size())];
      const bool whole = dice.Below(3) == 0;
      mine.push_back(
          EmptyPiece(tensor, whole ? Box::Whole(tensor.shape) : RandomBox(tensor.shape, dice)));
    }
  }
  return pieces;
}

// Of the manifest, of the files' frames, and of the boxes that somebody wants.
int64_t BytesToRead(const std::string& directory, const Manifest& manifest,
                    const std::vector<std::vector<TensorPiece>>& pieces) {
  int64_t bytes =
      manifest.bytes() + FileSystem::Get().FileSize(JoinPath(directory, kManifestFile)).value();
  for (const StoredTensor& tensor : manifest.tensors) {
    for (const StoredBox& stored : tensor.boxes) {
      bool wanted = false;
      for (const auto& mine : pieces) {
        for (const TensorPiece& piece : mine) {
          wanted |= piece.path() == tensor.path() && Intersect(piece.box, stored.box).has_value();
        }
      }
      if (!wanted) bytes -= stored.box.size() * SizeOf(tensor.dtype);
    }
  }
  return bytes;
}

TEST(Loading, AnyRanksGetAnyBoxesAndEachByteIsReadOnce) {
  const std::vector<SampleTensor> tensors = SampleTensors();
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    TemporaryDirectory directory;
    Dice dice(seed);
    const int writers = static_cast<int>(1 + dice.Below(5));
    const int readers = static_cast<int>(1 + dice.Below(6));
    const auto saved = SaveSample(directory.path(), 1, seed, writers);
    ASSERT_TRUE(saved.ok()) << saved.status();
    const auto pieces = RandomWants(tensors, readers, dice);
    LoadOptions options;
    const std::vector<int64_t> sizes = {1, 100, 3000, options.round_bytes};
    options.round_bytes = sizes[dice.Below(sizes.size())];

    std::vector<int64_t> read(readers);
    RunRanks(readers, [&](Communicator& world) {
      auto checkpoint = Checkpoint::Open(saved->path, world);
      ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
      const std::vector<TensorPiece>& mine = pieces[world.rank()];
      const absl::Status loaded = checkpoint->Load(mine, options);
      ASSERT_TRUE(loaded.ok()) << loaded;
      for (const TensorPiece& piece : mine) {
        const SampleTensor of{piece.group, piece.name, piece.tensor.dtype(), piece.shape};
        EXPECT_TRUE(HasSampleValues(piece, of, seed)) << piece.path() << piece.box.ToString();
      }
      read[world.rank()] = checkpoint->bytes_read();
    });
    const Manifest manifest = ReadManifest(saved->path).value();
    EXPECT_EQ(std::accumulate(read.begin(), read.end(), int64_t{0}),
              BytesToRead(saved->path, manifest, pieces));
  }
}

TEST(Loading, WhatOneRankMayNotLoadNoneDoes) {
  TemporaryDirectory directory;
  const std::string path = SaveSample(directory.path(), 1, 3, 2).value().path;
  std::vector<absl::Status> statuses(3);
  RunRanks(3, [&](Communicator& world) {
    auto checkpoint = Checkpoint::Open(path, world);
    const DType dtype = world.rank() == 1 ? DType::kF64 : DType::kF32;
    const TensorPiece piece = EmptyPiece({"param", "norm.weight", dtype, {16}}, Box::Whole({16}));
    statuses[world.rank()] = checkpoint->Load({&piece, 1});
    EXPECT_TRUE(checkpoint->Load({&piece, 1}, {.convert = true}).ok());
    EXPECT_EQ(
        piece.tensor.ToDoubles(),
        SamplePiece({"param", "norm.weight", DType::kF32, {16}}, piece.box, 3).tensor.ToDoubles());
  });
  for (const absl::Status& status : statuses) EXPECT_EQ(status, statuses[0]);
  EXPECT_TRUE(absl::IsInvalidArgument(statuses[0])) << statuses[0];
  EXPECT_NE(statuses[0].message().find("rank 1"), std::string::npos) << statuses[0];
}

}  // namespace
}  // namespace lt2
