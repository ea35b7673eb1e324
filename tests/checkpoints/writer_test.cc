#include "checkpoints/writer.h"

#include <gtest/gtest.h>

#include "tests/checkpoints/saving.h"
#include "tests/support/temporary_directory.h"

namespace lt2 {
namespace {

TEST(Writer, WhatAnyRanksSaveAnyBoxesLoad) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    TemporaryDirectory directory;
    Dice dice(seed);
    const int writers = static_cast<int>(1 + dice.Below(6));
    const WriterOptions options{.async = dice.Below(2) == 1, .verify_writes = dice.Below(2) == 1};
    const int sharing = static_cast<int>(dice.Below(4));  // ranks a file; 0: each its own
    const auto saved = SaveSample(directory.path(), 10, seed, writers, options, 1, sharing);
    ASSERT_TRUE(saved.ok()) << saved.status();
    EXPECT_EQ(saved->path, JoinPath(directory.path(), "step-0000000010"));
    EXPECT_EQ(Leftovers(directory.path()), std::vector<std::string>{});

    const auto report = Verify(saved->path);
    ASSERT_TRUE(report.ok() && report->sound()) << report->status();
    EXPECT_EQ(report->manifest.bytes(), saved->bytes);
    const int each = std::max(1, sharing), shards = (writers + each - 1) / each;
    ASSERT_EQ(report->manifest.files.size(), size_t(shards) + 1);  // and the index
    for (int shard = 0; shard < shards; ++shard) {
      EXPECT_EQ(report->manifest.files[shard].name, ShardName(shard * each));
    }
    EXPECT_EQ(report->manifest.info.extra, SampleInfo(10).extra);
    ExpectSample(saved->path, seed);

    auto checkpoint = Checkpoint::Open(saved->path);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    for (const SampleTensor& tensor : SampleTensors()) {
      TensorPiece piece = EmptyPiece(tensor, RandomBox(tensor.shape, dice));
      ASSERT_TRUE(checkpoint->Load({&piece, 1}).ok());
      EXPECT_TRUE(HasSampleValues(piece, tensor, seed)) << tensor.path() << piece.box.ToString();
    }
  }
}

TEST(Writer, AsyncSavesWhatTheTensorsHeldWhenTheyWereCopied) {
  TemporaryDirectory directory;
  Dice dice(3);
  auto pieces = RandomPieces(SampleTensors(), 3, /*seed=*/3, dice);
  RunRanks(3, [&](Communicator& world) {
    Writer writer(directory.path(), world, {.async = true});
    for (int64_t step : {1, 2}) {
      ASSERT_TRUE(writer.Begin(SampleInfo(step), pieces[world.rank()]).ok());
      EXPECT_TRUE(writer.in_flight());
      writer.AwaitCopy();
      for (const TensorPiece& piece : pieces[world.rank()]) {
        if (step == 2) piece.tensor.Zero();
      }
      while (!writer.LocalDone()) std::this_thread::yield();
      const auto gathered = writer.Advance();
      ASSERT_TRUE(gathered.ok()) << gathered.status();
      EXPECT_FALSE(gathered->has_value());
      EXPECT_TRUE(writer.in_flight());
      while (!writer.LocalDone()) std::this_thread::yield();
      const auto saved = writer.Advance();
      ASSERT_TRUE(saved.ok()) << saved.status();
      EXPECT_EQ(saved->value().step, step);
      EXPECT_FALSE(writer.in_flight());
    }
  });
  ExpectSample(JoinPath(directory.path(), StepName(1)), 3);
  ExpectSample(JoinPath(directory.path(), StepName(2)), 3);
}

TEST(Writer, LaterSavesOfASharedFileAreWholeToo) {
  TemporaryDirectory directory;
  Dice dice(4);
  const auto tensors = SampleTensors();
  auto pieces = RandomPieces(tensors, 4, /*seed=*/4, dice);
  RunRanks(4, [&](Communicator& world) {
    Writer writer(directory.path(), world,
                  {.async = true, .sharing = world.Split(world.rank() / 2, 0, "node")});
    for (int64_t step : {1, 2, 3}) {
      ASSERT_TRUE(writer.Begin(SampleInfo(step), pieces[world.rank()]).ok());
      const auto saved = writer.Publish();
      ASSERT_TRUE(saved.ok()) << saved.status();
    }
  });
  for (int64_t step : {2, 3}) {
    const std::string path = JoinPath(directory.path(), StepName(step));
    EXPECT_TRUE(Verify(path)->sound()) << Verify(path)->status();
    EXPECT_EQ(FileSystem::Get().List(path).value(),
              (std::vector<std::string>{kIndexFile, kManifestFile, ShardName(0), ShardName(2)}));
    ExpectSample(path, 4);
    const auto index = h5::File::Open(JoinPath(path, kIndexFile));
    for (const SampleTensor& tensor : tensors) {
      std::vector<double> values(tensor.shape.size());
      ASSERT_TRUE(index->Read(tensor.path(), h5::Type::kF64, values.data()).ok());
      EXPECT_EQ(values, SamplePiece(tensor, Box::Whole(tensor.shape), 4).tensor.ToDoubles());
    }
  }
}

TEST(Writer, ReplacesACheckpointOfTheSameStep) {
  TemporaryDirectory directory;
  ASSERT_TRUE(SaveSample(directory.path(), 5, 1, 2).ok());
  ASSERT_TRUE(SaveSample(directory.path(), 5, 2, 3).ok());
  ExpectSample(JoinPath(directory.path(), StepName(5)), 2);
  EXPECT_EQ(Leftovers(directory.path()), std::vector<std::string>{});
}

TEST(Writer, WhatAnOvertakenHolderSavesIsDiscarded) {
  TemporaryDirectory directory;
  ASSERT_TRUE(SaveSample(directory.path(), 5, 1, 2).ok());
  WriterOptions options;
  options.may_publish = [] { return absl::AbortedError("lost the run to pid 7"); };
  const auto saved = SaveSample(directory.path(), 6, 1, 2, options);
  EXPECT_TRUE(absl::IsAborted(saved.status())) << saved.status();
  EXPECT_NE(saved.status().message().find("pid 7"), std::string::npos);
  EXPECT_NE(saved.status().message().find(StepName(5)), std::string::npos) << saved.status();
  EXPECT_EQ(FileSystem::Get().List(directory.path()).value(),
            std::vector<std::string>{StepName(5)});
}

TEST(Writer, PiecesThatDoNotTileAreRefused) {
  TemporaryDirectory directory;
  const SampleTensor tensor{"param", "w", DType::kF32, {6, 2}};
  const auto world = MakeGroupOfOne();
  Writer writer(directory.path(), *world, {});
  const std::vector<TensorPiece> hole = {SamplePiece(tensor, {{0, 0}, {4, 2}}, 1)};
  ASSERT_TRUE(writer.Begin(SampleInfo(1), hole).ok());
  const absl::Status status = writer.Publish().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_NE(status.message().find("param/w"), std::string::npos) << status;
  EXPECT_TRUE(FileSystem::Get().List(directory.path())->empty());
}

TEST(Writer, KeepsWhatRetentionSays) {
  TemporaryDirectory directory;
  const WriterOptions options{.retention = {.keep_last = 2, .keep_every = 4}};
  for (int64_t step = 1; step <= 9; ++step) {
    ASSERT_TRUE(SaveSample(directory.path(), step, 1, 1, options).ok());
  }
  EXPECT_EQ(FileSystem::Get().List(directory.path()).value(),
            (std::vector<std::string>{StepName(4), StepName(8), StepName(9)}));
}

TEST(Writer, RetentionSparesTheNewestSound) {
  TemporaryDirectory directory;
  for (int64_t step : {1, 2, 3}) ASSERT_TRUE(SaveSample(directory.path(), step, 1, 1).ok());
  const std::string newest = JoinPath(directory.path(), StepName(3));
  ASSERT_TRUE(FileSystem::Get().RemoveAll(JoinPath(newest, "shard-00000.h5")).ok());
  ASSERT_TRUE(ApplyRetention(directory.path(), {.keep_last = 1}, newest).ok());
  EXPECT_EQ(FileSystem::Get().List(directory.path()).value(),
            (std::vector<std::string>{StepName(2), StepName(3)}));
}

TEST(Writer, RetentionSparesWhatWasJustPublished) {
  TemporaryDirectory directory;
  for (int64_t step : {30, 40}) ASSERT_TRUE(SaveSample(directory.path(), step, 1, 1).ok());
  const auto saved = SaveSample(directory.path(), 5, 2, 1, {.retention = {.keep_last = 2}});
  ASSERT_TRUE(saved.ok()) << saved.status();
  ExpectSample(saved->path, 2);
}

}  // namespace
}  // namespace lt2
