// Ranks as threads with tensors on one GPU.
#include <gtest/gtest.h>

#include <cmath>

#include "core/allocator.h"
#include "core/cuda.h"
#include "core/philox.h"
#include "parallel/thread_communicator.h"
#include "tests/parallel/collective_suite.h"

namespace lt2 {
namespace {

class ThreadsOnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda::DeviceCount() == 0) GTEST_SKIP() << "there is no GPU here";
  }
  const Device gpu_{Backend::kCuda};
};

TEST_F(ThreadsOnGpu, EveryCollectiveWithEveryNumberOfRanks) {
  for (int ranks = 1; ranks <= 5; ++ranks) {
    SCOPED_TRACE(ranks);
    RunRanksOnGpu(ranks, gpu_, [&](Communicator& world) { CheckEveryCollective(world, gpu_); });
    RunRanksOnGpu(ranks, gpu_, [&](Communicator& world) { CheckEveryCollective(world); });
  }
}

// Rank r's number i of a run.
std::vector<double> Values(int64_t size, int rank, int run) {
  std::vector<double> values(size);
  for (int64_t i = 0; i < size; ++i) {
    values[i] = 2 * OpenUniform(Philox(rank, i, run)[0]) - 1;
  }
  return values;
}

// Sums are those of ranks on the CPU, though temporaries are freed while work on them is queued and
// ranks do it all at once: memory that one has freed is not another's.
TEST_F(ThreadsOnGpu, SumsHaveTheBitsOfTheCpu) {
  constexpr int kRanks = 3, kRuns = 6;
  constexpr int64_t kSize = 1 << 18;
  std::vector<std::vector<double>> want(kRuns);
  RunRanks(kRanks, [&](Communicator& world) {
    for (int run = 0; run < kRuns; ++run) {
      const Tensor x = Tensor::FromHost(Values(kSize, world.rank(), run), {kSize}, DType::kF32, {});
      world.AllReduce(x, Reduction::kSum);
      if (world.rank() == 0) want[run] = x.ToDoubles();
    }
  });
  RunRanksOnGpu(kRanks, gpu_, [&](Communicator& world) {
    std::vector<Tensor> sums;
    for (int run = 0; run < kRuns; ++run) {
      Tensor x = Tensor::FromHost(Values(kSize, world.rank(), run), {kSize}, DType::kF32, gpu_);
      for (int i = 0; i < 50; ++i) x = x.Clone();
      const Pending pending = world.AllReduceAsync(x, Reduction::kSum);
      pending.Wait();
      sums.push_back(x.Clone());
      x.Zero();
    }
    for (int run = 0; run < kRuns; ++run) EXPECT_EQ(sums[run].ToDoubles(), want[run]) << run;
  });
}

TEST_F(ThreadsOnGpu, EachRankHasMemoryOfItsOwn) {
  const MemoryStats before = CachingAllocator::Of(gpu_).stats();
  void* freed = nullptr;
  RunRanksOnGpu(2, gpu_, [&](Communicator& world) {
    constexpr int64_t kSize = int64_t{3} << 20;  // most of a segment
    const PoolScope common(nullptr);
    if (world.rank() == 0) freed = Tensor::Empty({kSize}, DType::kU8, gpu_).raw();
    world.Barrier();
    void* const again = Tensor::Empty({kSize}, DType::kU8, gpu_).raw();
    if (world.rank() == 0) {
      EXPECT_EQ(again, freed);
    } else {
      EXPECT_NE(again, freed);
    }
    world.Barrier();
  });
  EXPECT_EQ(CachingAllocator::Of(gpu_).stats().live, before.live);
}

TEST_F(ThreadsOnGpu, HostAndGpuDoNotMix) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a fork would have no GPU
  const auto mixed = [&](Communicator& world) {
    world.AllReduce(Tensor::Zeros({4}, DType::kF32, world.rank() == 0 ? Device{} : gpu_),
                    Reduction::kSum, "mixed");
  };
  EXPECT_DEATH(RunRanksOnGpu(2, gpu_, mixed), "'mixed'.*one on a GPU and the other not");
}

}  // namespace
}  // namespace lt2
