// Saving and checking sample states in one line.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "checkpoints/reader.h"
#include "checkpoints/verify.h"
#include "checkpoints/writer.h"
#include "core/file.h"
#include "parallel/thread_communicator.h"
#include "tests/checkpoints/sample_state.h"

namespace lt2 {

inline CheckpointInfo SampleInfo(int64_t step) {
  return {.id = "",
          .step = step,
          .tokens = step * 2048,
          .samples = step * 8,
          .data = "f00d",
          .tokenizer = "bytes",
          .tokenizer_hash = "beef",
          .seed = 17,
          .config = "[run]\nname = \"sample \\\"quoted\\\"\"\n",
          .mesh = "dp=2",
          .ranks = 2,
          .code = "abc+",
          .extra = {{"skipped", 3}, {"loss", 0.1}}};
}

// Saves the sample state of `seed` from `ranks` ranks, randomly cut, each with a file of its own or
// `sharing` of them with one; the result of rank 0.
inline absl::StatusOr<SavedCheckpoint> SaveSample(const std::string& root, int64_t step,
                                                  uint64_t seed, int ranks,
                                                  const WriterOptions& options = {},
                                                  int64_t scale = 1, int sharing = 0) {
  Dice dice(seed * 7919 + step);
  const auto pieces = RandomPieces(SampleTensors(scale), ranks, seed, dice);
  std::vector<absl::StatusOr<SavedCheckpoint>> results(ranks, absl::UnknownError("not run"));
  RunRanks(ranks, [&](Communicator& world) {
    WriterOptions mine = options;
    if (sharing > 0) mine.sharing = world.Split(world.rank() / sharing, world.rank(), "node");
    Writer writer(root, world, mine);
    const absl::Status begun = writer.Begin(SampleInfo(step), pieces[world.rank()]);
    if (!begun.ok()) results[world.rank()] = begun;
    if (begun.ok()) results[world.rank()] = writer.Publish();
  });
  for (const auto& result : results) EXPECT_EQ(result.status(), results[0].status());
  return results[0];
}

// Every tensor of the checkpoint, whole, against the sample state of `seed`.
inline void ExpectSample(const std::string& directory, uint64_t seed, int64_t scale = 1) {
  absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(directory);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  for (const SampleTensor& tensor : SampleTensors(scale)) {
    TensorPiece piece = EmptyPiece(tensor, Box::Whole(tensor.shape));
    const absl::Status loaded = checkpoint->Load({&piece, 1});
    ASSERT_TRUE(loaded.ok()) << loaded;
    EXPECT_TRUE(HasSampleValues(piece, tensor, seed)) << tensor.path();
  }
}

// Names in a directory that are no published checkpoints.
inline std::vector<std::string> Leftovers(const std::string& root) {
  std::vector<std::string> left;
  const auto names = FileSystem::Get().List(root);
  if (!names.ok()) return left;
  for (const std::string& name : *names) {
    if (!StepOfName(name)) left.push_back(name);
  }
  return left;
}

}  // namespace lt2
