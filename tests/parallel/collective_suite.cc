#include "tests/parallel/collective_suite.h"

#include <gtest/gtest.h>

#include <numeric>

namespace lt2 {
namespace {

template <class T>
Tensor Filled(int64_t size, const std::function<double(int64_t)>& value) {
  Tensor x = Tensor::Empty({size}, kDTypeOf<T>, {});
  for (int64_t i = 0; i < size; ++i) x.data<T>()[i] = static_cast<T>(value(i));
  return x;
}

// Uneven, with an empty range wherever there are three ranks or more.
std::vector<int64_t> UnevenCounts(int ranks) {
  std::vector<int64_t> counts;
  for (int r = 0; r < ranks; ++r) counts.push_back(r % 3 == 2 ? 0 : 5 + 3 * r);
  return counts;
}

int64_t Sum(const std::vector<int64_t>& counts, int ranks) {
  return std::accumulate(counts.begin(), counts.begin() + ranks, int64_t{0});
}

// Rank r has (r + 1) * i: sums, least and largest are known. Small enough for every dtype.
template <class T>
void CheckReductions(Communicator& world) {
  const int ranks = world.size();
  const auto mine = [&](int64_t i) { return (world.rank() + 1.0) * (i % 5); };
  for (Reduction op : {Reduction::kSum, Reduction::kMin, Reduction::kMax}) {
    const double factor = op == Reduction::kSum   ? ranks * (ranks + 1) / 2
                          : op == Reduction::kMin ? 1
                                                  : ranks;
    for (int64_t size : {0, 1, 7, 5000}) {
      Tensor x = Filled<T>(size, mine);
      world.AllReduce(x, op);
      for (int64_t i = 0; i < size; ++i) ASSERT_EQ(x.data<T>()[i], T(factor * (i % 5))) << i;
    }
    const std::vector<int64_t> counts = UnevenCounts(ranks);
    Tensor x = Filled<T>(Sum(counts, ranks), mine);
    world.ReduceScatter(x, counts, op);
    const int64_t begin = Sum(counts, world.rank());
    for (int64_t i = begin; i < begin + counts[world.rank()]; ++i) {
      ASSERT_EQ(x.data<T>()[i], T(factor * (i % 5))) << i;
    }
  }
}

template <class T>
void CheckMoves(Communicator& world) {
  const int ranks = world.size(), rank = world.rank();
  const std::vector<int64_t> counts = UnevenCounts(ranks);
  const int64_t begin = Sum(counts, rank), end = begin + counts[rank];
  Tensor x =
      Filled<T>(Sum(counts, ranks), [&](int64_t i) { return i >= begin && i < end ? i + 1 : 0; });
  world.AllGather(x, counts);
  for (int64_t i = 0; i < x.size(); ++i) ASSERT_EQ(x.data<T>()[i], T(i + 1));

  for (int root = 0; root < ranks; ++root) {
    Tensor y = Filled<T>(9, [&](int64_t i) { return rank == root ? 10 * root + i : 0; });
    world.Broadcast(y, root);
    for (int64_t i = 0; i < 9; ++i) ASSERT_EQ(y.data<T>()[i], T(10 * root + i));
  }

  // Rank a sends a + b elements of value 10 a + b to rank b.
  std::vector<int64_t> out_counts;
  for (int r = 0; r < ranks; ++r) out_counts.push_back(rank + r);
  Tensor to = Tensor::Empty({Sum(out_counts, ranks)}, kDTypeOf<T>, {});
  Tensor from = Tensor::Zeros(to.shape(), kDTypeOf<T>, {});
  int64_t at = 0;
  for (int r = 0; r < ranks; ++r) {
    for (int64_t i = 0; i < out_counts[r]; ++i) to.data<T>()[at++] = static_cast<T>(10 * rank + r);
  }
  world.AllToAll(to, out_counts, from, out_counts);
  at = 0;
  for (int r = 0; r < ranks; ++r) {
    for (int64_t i = 0; i < out_counts[r]; ++i) ASSERT_EQ(from.data<T>()[at++], T(10 * r + rank));
  }
}

void CheckMessages(Communicator& world) {
  if (world.size() == 1) return;
  // A ring in which everyone sends before it receives, twice, with messages too long to be
  // buffered.
  const int ranks = world.size(), rank = world.rank();
  const int right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks;
  constexpr int64_t kSize = 200000;
  std::vector<Tensor> out, in;
  std::vector<Pending> pending;
  for (int message = 0; message < 2; ++message) {
    out.push_back(Filled<float>(kSize, [&](int64_t i) { return 1000 * message + rank + i % 7; }));
    in.push_back(Tensor::Zeros({kSize}, DType::kF32, {}));
    pending.push_back(world.SendAsync(out[message], right));
  }
  for (int message = 0; message < 2; ++message) {
    pending.push_back(world.ReceiveAsync(in[message], left));
  }
  for (const Pending& each : pending) each.Wait();
  for (int message = 0; message < 2; ++message) {
    for (int64_t i = 0; i < kSize; i += 999) {
      ASSERT_EQ(in[message].data<float>()[i], 1000 * message + left + i % 7);
    }
  }
}

void CheckStrings(Communicator& world) {
  const auto text = [](int r) { return std::string(r % 2 ? 0 : 3 * r + 1, 'a' + r % 26); };
  const std::vector<std::string> all = world.GatherStrings(text(world.rank()));
  ASSERT_EQ(static_cast<int>(all.size()), world.size());
  for (int r = 0; r < world.size(); ++r) EXPECT_EQ(all[r], text(r));
  const std::string zero("a\0b", 3);
  EXPECT_EQ(world.BroadcastString(world.rank() == 0 ? zero : "other"), zero);
  const int last = world.size() - 1;
  EXPECT_EQ(world.BroadcastString(world.rank() == last ? "end" : "other", last), "end");
}

void CheckSplit(Communicator& world) {
  // Odd and even ranks, each in reverse order.
  const int parity = world.rank() % 2;
  auto half = world.Split(parity, -world.rank(), "half");
  EXPECT_EQ(half->size(), (world.size() + 1 - parity) / 2);
  EXPECT_EQ(half->name(), "half");
  EXPECT_EQ(half->local_size(), world.local_size());
  const std::vector<std::string> names = half->GatherStrings(std::to_string(world.rank()));
  for (int r = 0; r < half->size(); ++r) {
    EXPECT_EQ(names[r], std::to_string(parity + 2 * (half->size() - 1 - r)));
  }
  // Both groups at work at once, and a group split again.
  Tensor x = Filled<double>(3, [&](int64_t) { return 1; });
  Tensor y = Filled<double>(3, [&](int64_t) { return 1; });
  Pending first = half->AllReduceAsync(x, Reduction::kSum);
  Pending second = world.AllReduceAsync(y, Reduction::kSum);
  second.Wait();
  first.Wait();
  EXPECT_EQ(x.data<double>()[2], half->size());
  EXPECT_EQ(y.data<double>()[2], world.size());
  auto alone = half->Split(half->rank(), 0, "alone");
  EXPECT_EQ(alone->size(), 1);
  alone->Barrier();
}

void CheckManyInFlight(Communicator& world) {
  const int ranks = world.size();
  std::vector<Tensor> tensors;
  std::vector<Pending> pending;
  for (int k = 0; k < 24; ++k) {
    const int64_t each = 3000 + 100 * k;
    tensors.push_back(Filled<float>(each * ranks, [&](int64_t) { return world.rank() + k; }));
    const std::vector<int64_t> counts(ranks, each);
    pending.push_back(k % 3 == 0   ? world.AllReduceAsync(tensors[k], Reduction::kSum)
                      : k % 3 == 1 ? world.ReduceScatterAsync(tensors[k], counts, Reduction::kSum)
                                   : world.AllGatherAsync(tensors[k], counts));
  }
  for (int k = 23; k >= 0; --k) pending[k].Wait();
  for (int k = 0; k < 24; ++k) {
    EXPECT_TRUE(pending[k].done());
    const int64_t each = tensors[k].size() / ranks;
    const double sum = ranks * (ranks - 1) / 2 + ranks * k;
    for (int r = 0; r < ranks; ++r) {
      const double got = tensors[k].data<float>()[r * each + each - 1];
      if (k % 3 == 2) {
        EXPECT_EQ(got, r + k) << k;
      } else if (k % 3 == 0 || r == world.rank()) {
        EXPECT_EQ(got, sum) << k;
      }
    }
  }
}

}  // namespace

void CheckEveryCollective(Communicator& world) {
  CheckReductions<float>(world);
  CheckReductions<double>(world);
  CheckReductions<int32_t>(world);
  CheckReductions<uint8_t>(world);
  CheckMoves<float>(world);
  CheckMoves<double>(world);
  CheckMoves<int32_t>(world);
  CheckMoves<uint8_t>(world);
  CheckMessages(world);
  CheckStrings(world);
  CheckSplit(world);
  CheckManyInFlight(world);
  world.Barrier();
  EXPECT_FALSE(world.recorder().OldestUnfinished().has_value());
}

}  // namespace lt2
