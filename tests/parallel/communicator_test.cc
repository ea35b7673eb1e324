#include "parallel/communicator.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "core/log.h"
#include "parallel/mpi_communicator.h"
#include "parallel/thread_communicator.h"
#include "tests/parallel/collective_suite.h"

namespace lt2 {
namespace {

TEST(ThreadCommunicator, EveryCollectiveWithEveryNumberOfRanks) {
  for (int ranks = 1; ranks <= 5; ++ranks) {
    SCOPED_TRACE(ranks);
    RunRanks(ranks, [](Communicator& world) { CheckEveryCollective(world); });
  }
}

TEST(ThreadCommunicator, ReducesInRankOrder) {
  // (1e16 + 1) - 1e16 is 0 or 2, and (1e16 - 1e16) + 1 is 1: the order shows.
  const std::vector<double> values = {1e16, 1, -1e16};
  RunRanks(3, [&](Communicator& world) {
    Tensor x = Tensor::FromHost(std::vector{values[world.rank()]}, {1}, DType::kF64, {});
    world.AllReduce(x, Reduction::kSum);
    EXPECT_EQ(*x.data<double>(), (values[0] + values[1]) + values[2]);
  });
}

TEST(ThreadCommunicator, TellsEachThreadItsRank) {
  RunRanks(3, [](Communicator& world) { EXPECT_EQ(LogRank(), world.rank()); });
}

TEST(ThreadCommunicatorDeathTest, ARankThatReturnsEarlyIsNamed) {
  const auto leave = [](Communicator& world) {
    if (world.rank() != 1) world.Barrier("waiting_for_all");
  };
  EXPECT_DEATH(RunRanks(3, leave),
               "rank 1 of world has returned while rank . waits in "
               "'waiting_for_all'");
  const auto leave_split = [](Communicator& world) {
    if (world.rank() == 0) world.Split(0, 0, "half");
  };
  EXPECT_DEATH(RunRanks(2, leave_split), "rank 1 of world has returned while others wait in Split");
  const auto leave_receive = [](Communicator& world) {
    Tensor x = Tensor::Zeros({1}, DType::kF32, {});
    if (world.rank() == 0) world.Receive(x, 1, "next_stage");
  };
  EXPECT_DEATH(RunRanks(2, leave_receive), "rank 1 of world has returned while 'next_stage'");
}

TEST(ThreadCommunicatorDeathTest, CallsThatDoNotFitAreNamed) {
  const auto different = [](Communicator& world) {
    Tensor x = Tensor::Zeros({4}, DType::kF32, {});
    if (world.rank() == 0) world.AllReduce(x, Reduction::kSum, "gradients");
    if (world.rank() == 1) world.Broadcast(x, 0, "tokens");
  };
  EXPECT_DEATH(RunRanks(2, different),
               "rank 0 calls AllReduce 'gradients'.*rank 1 calls Broadcast");
  const auto sizes = [](Communicator& world) {
    world.AllReduce(Tensor::Zeros({4 + world.rank()}, DType::kF32, {}), Reduction::kSum, "sizes");
  };
  EXPECT_DEATH(RunRanks(2, sizes), "'sizes' \\[4\\] where rank 1");
}

TEST(CommunicatorDeathTest, BadArgumentsAreRefusedAtTheCall) {
  auto one = MakeGroupOfOne();
  Tensor x = Tensor::Zeros({4}, DType::kF32, {});
  const std::vector<int64_t> counts = {3};
  EXPECT_DEATH(one->ReduceScatter(x, counts, Reduction::kSum, "short"), "short");
  EXPECT_DEATH(one->Send(x, 0, "self"), "self");
  EXPECT_DEATH(one->Broadcast(x, 1, "nobody"), "nobody from rank 1 of 1");
  Tensor bf16 = Tensor::Zeros({4}, DType::kBF16, {});
  EXPECT_DEATH(one->AllReduce(bf16, Reduction::kSum, "narrow"), "narrow");
}

TEST(GroupOfOne, ReturnsItsInput) {
  auto one = MakeGroupOfOne();
  CheckEveryCollective(*one);
  EXPECT_EQ(one->size(), 1);
  EXPECT_EQ(one->recorder().OldestUnfinished(), std::nullopt);
}

TEST(StartWorld, ReadsTheLaunchersVariables) {
  const auto with = [](std::vector<std::pair<const char*, const char*>> variables) {
    for (auto [name, value] : variables) setenv(name, value, 1);
    const int processes = LaunchedProcesses();
    for (auto [name, value] : variables) unsetenv(name);
    return processes;
  };
  EXPECT_EQ(with({}), 1);
  EXPECT_EQ(with({{"OMPI_COMM_WORLD_SIZE", "4"}}), 4);
  EXPECT_EQ(with({{"PMI_SIZE", "2"}}), 2);
  EXPECT_EQ(with({{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "8"}}), 8);
  EXPECT_EQ(with({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}}), 1);  // the batch script itself
  EXPECT_EQ(with({{"PMIX_RANK", "1"}}), 0);
  auto world = StartWorld();
  ASSERT_TRUE(world.ok()) << world.status();
  EXPECT_EQ((*world)->size(), 1);
}

TEST(MetaCommunicator, MovesNothing) {
  auto meta = MakeMetaCommunicator(3, 8);
  Tensor x = Tensor::Empty({80}, DType::kF32, {Backend::kMeta});
  Pending pending = meta->ReduceScatterAsync(x, std::vector<int64_t>(8, 10), Reduction::kSum);
  EXPECT_TRUE(pending.done());
  meta->AllGather(x, std::vector<int64_t>(8, 10));
}

TEST(FlightRecorder, KnowsWhatIsUnderWay) {
  FlightRecorder recorder(4);
  const uint64_t first = recorder.Issue("dp", "AllReduce", "reduce_gradients", 64);
  const uint64_t second = recorder.Issue("world", "Barrier", "barrier", 0);
  recorder.Start(first);
  recorder.Start(second);
  recorder.End(second);
  ASSERT_TRUE(recorder.OldestUnfinished().has_value());
  EXPECT_EQ(recorder.OldestUnfinished()->id, first);
  EXPECT_EQ(recorder.OldestUnfinished()->sequence, 1u);
  EXPECT_NE(recorder.ToText(8).find("reduce_gradients #1 (AllReduce) on dp, 64 bytes: under way"),
            std::string::npos)
      << recorder.ToText(8);
  recorder.End(first);
  EXPECT_FALSE(recorder.OldestUnfinished().has_value());

  for (int i = 0; i < 5; ++i) recorder.Issue("dp", "AllReduce", "reduce_gradients", 64);
  const std::vector<FlightRecord> records = recorder.Records();
  ASSERT_EQ(records.size(), 4u);
  EXPECT_EQ(records.back().sequence, 6u);  // of dp, the barrier not counted
  recorder.End(first);                     // long overwritten: nothing happens
  EXPECT_EQ(recorder.OldestUnfinished()->sequence, 3u);
}

}  // namespace
}  // namespace lt2
