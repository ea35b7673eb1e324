// A process killed while it saves leaves sound checkpoints and what RemoveStale clears, nothing
// else.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "tests/checkpoints/saving.h"
#include "tests/support/temporary_directory.h"

namespace lt2 {
namespace {

constexpr int64_t kScale = 100;  // some milliseconds a save

using Pieces = std::vector<std::vector<TensorPiece>>;  // by rank

[[noreturn]] void SaveForever(const std::string& root, int64_t step, const Pieces& pieces,
                              bool async, bool sharing) {
  for (;; ++step) {
    RunRanks(2, [&](Communicator& world) {
      Writer writer(root, world,
                    {.async = async,
                     .retention = {.keep_last = 2},
                     .sharing = sharing ? world.Split(0, world.rank(), "node") : nullptr});
      if (!writer.Begin(SampleInfo(step), pieces[world.rank()]).ok()) _exit(1);
      if (!writer.Publish().ok()) _exit(1);
    });
  }
}

TEST(Kill, AtRandomTimesWhileSaving) {
  constexpr uint64_t kSeed = 2;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  Dice dice(kSeed);
  TemporaryDirectory directory;
  ASSERT_TRUE(SaveSample(directory.path(), 1, 1, 2, {}, kScale).ok());
  const Pieces pieces = RandomPieces(SampleTensors(kScale), 2, /*seed=*/1, dice);
  int64_t last = 1;
  int interrupted = 0;
  for (int trial = 0; trial < 20; ++trial) {
    const pid_t child = fork();
    if (child == 0) {
      SaveForever(directory.path(), last + 1, pieces, trial % 2 == 1, trial % 4 > 1);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20 + dice.Below(120)));
    ASSERT_EQ(kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child ended by itself";

    const auto steps = ListSteps(directory.path());
    ASSERT_TRUE(steps.ok() && !steps->empty());
    EXPECT_GE(steps->back().step, last);
    for (const StepDirectory& step : *steps) {
      ExpectSample(step.path, /*seed=*/1, kScale);
    }
    last = steps->back().step;
    interrupted += !Leftovers(directory.path()).empty();
    ASSERT_TRUE(RemoveStale(directory.path()).ok());
    EXPECT_EQ(Leftovers(directory.path()), std::vector<std::string>{});
    const auto sound = FindNewestSound(directory.path(), [](const std::string& warning) {
      ADD_FAILURE() << "nothing may be damaged: " << warning;
    });
    EXPECT_EQ(sound.value(), steps->back().path);
  }
  EXPECT_GT(interrupted, 0) << "no kill fell into a save: the state is too small";
  EXPECT_GT(last, 1) << "no save was ever finished: the state is too large";
}

}  // namespace
}  // namespace lt2
