#include "core/allocator.h"

#include <gtest/gtest.h>

#include <vector>

#include "core/home_scope.h"
#include "core/philox.h"
#include "core/tensor.h"

namespace lt2 {
namespace {

TEST(CachingAllocator, RandomUseNeverOverlapsAndMergesBack) {
  const uint64_t seed = 20260101;
  SCOPED_TRACE(seed);
  CachingAllocator allocator(HostMemory());
  struct Held {
    unsigned char* at;
    int64_t bytes;
    unsigned char mark;
  };
  std::vector<Held> held;
  int64_t live = 0;
  for (uint64_t i = 0; i < 4000; ++i) {
    const Philox4 r = Philox(seed, i);
    if (held.empty() || r[0] % 5 < 3) {
      const int64_t bytes = 1 + r[1] % (r[2] % 7 == 0 ? 400000 : 3000);
      const auto mark = static_cast<unsigned char>(i);
      auto* at = static_cast<unsigned char*>(allocator.Allocate(bytes));
      ASSERT_EQ(reinterpret_cast<uintptr_t>(at) % CachingAllocator::kAlignment, 0u);
      std::fill_n(at, bytes, mark);
      held.push_back({at, bytes, mark});
      live += CachingAllocator::Rounded(bytes);
    } else {
      const size_t victim = r[1] % held.size();
      const Held h = held[victim];
      for (int64_t b = 0; b < h.bytes; b += 97) ASSERT_EQ(h.at[b], h.mark);
      allocator.Free(h.at);
      live -= CachingAllocator::Rounded(h.bytes);
      held.erase(held.begin() + static_cast<ptrdiff_t>(victim));
    }
    ASSERT_EQ(allocator.stats().live, live);
  }
  for (const Held& h : held) allocator.Free(h.at);
  EXPECT_EQ(allocator.stats().live, 0);
  allocator.Trim();  // possible only if every segment merged back into one block
  EXPECT_EQ(allocator.stats().reserved, 0);
}

TEST(CachingAllocator, ASecondRoundAsksTheSystemForNothing) {
  CachingAllocator allocator(HostMemory());
  const auto round = [&] {
    std::vector<void*> held;
    for (int64_t bytes : {100, 5000000, 64, 70000, 5000000})
      held.push_back(allocator.Allocate(bytes));
    for (void* pointer : held) allocator.Free(pointer);
  };
  round();
  const int64_t growths = allocator.stats().growths;
  for (int i = 0; i < 10; ++i) round();
  EXPECT_EQ(allocator.stats().growths, growths);
}

TEST(CachingAllocator, FreeingTwiceDies) {
  CachingAllocator allocator(HostMemory());
  void* pointer = allocator.Allocate(10);
  allocator.Free(pointer);
  EXPECT_DEATH(allocator.Free(pointer), "freed twice");
}

Tensor Floats(int64_t size) { return Tensor::Empty({size}, DType::kF32, {Backend::kCpu}); }

// The addresses of the temporaries of a piece of work.
std::vector<void*> Work(const MemoryPool& pool) {
  const PoolScope scope(&pool);
  const Tensor a = Floats(1000);
  Tensor b = Floats(70'000);
  std::vector<void*> at = {a.raw(), b.raw()};
  b = {};
  at.push_back(Floats(30'000).raw());
  return at;
}

TEST(MemoryPool, WorkFindsItsTemporariesWhereTheyWereWhateverHappensOutside) {
  const MemoryPool pool({Backend::kCpu});
  const std::vector<void*> first = Work(pool);
  std::vector<Tensor> others;
  for (int64_t i = 0; i < 50; ++i) {
    others.push_back(Floats(1000 * (i + 1)));
    others.back().Zero();
    EXPECT_EQ(Work(pool), first);
    for (const void* at : first) EXPECT_NE(at, others.back().raw());
  }
  EXPECT_EQ(pool.stats().live, 0);
}

TEST(MemoryPool, WhatOutlivesTheWorkComesFromTheCommonMemory) {
  const MemoryPool pool({Backend::kCpu});
  const PoolScope scope(&pool);
  const Tensor inside = Floats(10);
  EXPECT_EQ(pool.stats().live, CachingAllocator::kAlignment);
  {
    const PoolScope common(nullptr);
    const Tensor outside = Floats(10);
    EXPECT_EQ(pool.stats().live, CachingAllocator::kAlignment);
  }
  const Tensor again = Floats(10);
  EXPECT_EQ(pool.stats().live, 2 * CachingAllocator::kAlignment);
}

TEST(MemoryPool, AtHomeNothingComesFromTheCommonMemory) {
  const MemoryPool home({Backend::kCpu}), step({Backend::kCpu});
  constexpr int64_t kEach = CachingAllocator::kAlignment;
  {
    const HomeScope at_home(&home);
    const Tensor a = Floats(10);
    EXPECT_EQ(home.stats().live, kEach);
    const PoolScope inside(&step);
    const Tensor b = Floats(10);
    EXPECT_EQ(home.stats().live, kEach);
    EXPECT_EQ(step.stats().live, kEach);
    const PoolScope common(nullptr);
    const Tensor c = Floats(10);
    EXPECT_EQ(home.stats().live, 2 * kEach);
  }
  const Tensor after = Floats(10);
  EXPECT_EQ(home.stats().live, 0);
}

TEST(MemoryPool, CountsInTheCommonMemoryAndGivesBackWithItsLastTensor) {
  CachingAllocator& common = CachingAllocator::Of({Backend::kCpu});
  common.Trim();
  const MemoryStats before = common.stats();
  const int64_t bytes = before.reserved + (int64_t{10} << 20);  // more than is there
  Tensor last;
  {
    MemoryPool pool({Backend::kCpu});
    pool.Reserve(bytes);
    EXPECT_GE(common.stats().reserved, before.reserved + bytes);
    EXPECT_EQ(common.stats().live, before.live);  // none of it is in use
    const PoolScope scope(&pool);
    last = Floats(100);
    EXPECT_EQ(pool.stats().live, 512);
    EXPECT_EQ(common.stats().live, before.live + 512);
    common.ResetPeak();
    Floats(1000);
    EXPECT_EQ(common.stats().peak, before.live + 512 + 4096);
  }
  common.Trim();
  EXPECT_GE(common.stats().reserved, before.reserved + bytes);
  last.Zero();
  last = {};
  EXPECT_EQ(common.stats().live, before.live);
  common.Trim();
  EXPECT_EQ(common.stats().reserved, before.reserved);
}

// Has no memory at all.
class NoMemory : public MemorySource {
 public:
  const char* name() const override { return "tiny"; }
  void* Take(int64_t) override { return nullptr; }
  void Give(void*, int64_t) override {}
};

TEST(CachingAllocatorDeathTest, OutOfMemoryTellsWhatIsAdvised) {
  CachingAllocator allocator(std::make_unique<NoMemory>());
  EXPECT_DEATH(allocator.Allocate(77), "out of tiny memory.*lower batch.micro_batch");
  allocator.SetAdvice([&] {
    return std::to_string(allocator.stats().live) + " are weights; use less";  // may look at it
  });
  EXPECT_DEATH(allocator.Allocate(77), "out of tiny memory.*0 are weights; use less");
}

TEST(MetaMeter, CountsWhatTensorsWouldHold) {
  const MetaMeter meter;
  const Device meta{Backend::kMeta};
  const Tensor a = Tensor::Empty({1000}, DType::kF32, meta);
  { const Tensor b = Tensor::Empty({1, 3}, DType::kF64, meta); }
  EXPECT_EQ(meter.memory().live, 4096);
  EXPECT_EQ(meter.memory().peak, 4096 + 256);
}

TEST(MetaMeter, AgreesWithTheHostAllocator) {
  const auto use = [](Device device) {
    std::vector<Tensor> tensors;
    for (uint64_t i = 0; i < 50; ++i) {
      tensors.push_back(Tensor::Empty({1 + Philox(5, i)[0] % 999, 3}, DType::kF32, device));
      if (i % 3 == 0) tensors.erase(tensors.begin());
    }
  };
  CachingAllocator& host = CachingAllocator::Of({Backend::kCpu});
  host.ResetPeak();
  const int64_t before = host.stats().live;
  use({Backend::kCpu});
  const MetaMeter meter;
  use({Backend::kMeta});
  EXPECT_EQ(meter.memory().peak, host.stats().peak - before);
}

}  // namespace
}  // namespace lt2
