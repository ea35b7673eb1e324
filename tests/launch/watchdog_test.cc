#include "launch/watchdog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "core/log.h"
#include "launch/signals.h"
#include "parallel/thread_communicator.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tiny_model.h"

namespace lt2 {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(Verdict, NamesWhoWaitsForNobody) {
  const std::vector<RankState> states = {
      {.rank = 0, .host = "a", .phase = "p", .waits_for = "sum #4 on cp"},
      {.rank = 1, .host = "a", .phase = "p", .place = "layer 2 of loop 0, forward", .silent = 3},
      {.rank = 2, .host = "b", .phase = "p", .waits_for = "sum #4 on cp"}};
  const std::string text = Verdict(states, 4);
  EXPECT_THAT(text, HasSubstr("rank 1 (a) is behind: in \"p\", layer 2 of loop 0, forward"));
  EXPECT_THAT(text, HasSubstr("rank 3 says nothing"));
  EXPECT_THAT(text, HasSubstr("2 ranks wait for sum #4 on cp"));
  EXPECT_THAT(text, Not(HasSubstr("rank 0 (a) is behind")));
}

TEST(StallReport, IsReadByOtherRanksAndForgottenByTheNextRun) {
  const TemporaryDirectory folder;
  const RankState mine{.rank = 1, .host = "h", .phase = "data", .silent = 2, .recent = "a\nb\n"};
  const StallReport report(folder.path(), 1, 2);
  ASSERT_TRUE(report.Write(mine).ok());
  const std::vector<RankState> states = StallReport(folder.path(), 0, 2).Read();
  ASSERT_EQ(states.size(), 1);
  EXPECT_EQ(states[0].rank, 1);
  EXPECT_EQ(states[0].phase, "data");
  EXPECT_EQ(states[0].recent, mine.recent);
  EXPECT_TRUE(StallReport(folder.path(), 1, 2).Read().empty());
}

// Three ranks share a row; rank 1 falls asleep in the given layer of the first loop's forward.
void RunAsleep(const std::string& folder, int end_of_params, double limit) {
  RunRanks(3, [&](Communicator& world) {
    TinyModel tiny(TinyConfig(), DType::kF32, Backend::kCpu);
    const TinyModel::Tokens tokens = RandomTokens(TinyConfig(), 60, 1, 7);
    ContextShard shard(world, 60, 4, {});
    shard.Fill(tokens.cu_seqlens);
    const std::vector<int32_t> ids(tokens.ids.begin() + shard.begin(),
                                   tokens.ids.begin() + shard.begin() + shard.tokens());
    const Tensor here = Tensor::FromHost(ids, {shard.tokens()}, {});
    Watchdog watchdog(world, limit, limit, folder);
    watchdog.Progress("forward and backward");
    int calls = 0;
    const auto sleep = [&](int) {
      if (world.rank() == 1 && ++calls == end_of_params) {
        std::this_thread::sleep_for(std::chrono::seconds(60));
      }
    };
    Tape tape(tiny.stream);
    tiny.model.Forward(tape, here, here, shard.documents(),
                       {.before_params = sleep, .shard = &shard});
    world.Barrier();
  });
}

// The embedding's parameters are asked for first, then those of layer 0 and so on.
TEST(WatchdogDeathTest, NamesTheRankThatKeepsTheOthersWaitingItsLayerAndTheirCollective) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const TemporaryDirectory folder;
  const auto begun = std::chrono::steady_clock::now();
  EXPECT_EXIT(
      RunAsleep(folder.path(), 3, 1.0), testing::ExitedWithCode(1),
      "rank 1 \\(thread\\) is behind: in \"forward and backward\", layer 1 of loop 0, forward.*"
      "in no collective\n2 ranks wait for .* on world, layer 1 of loop 0, forward");
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(20));
}

}  // namespace
}  // namespace lt2
