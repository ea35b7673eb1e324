#include "tests/parallel/collective_suite.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <numeric>
#include <thread>

namespace lt2 {
namespace {

using Value = std::function<double(int64_t)>;

// Calls fn.template operator()<T>() with the type that holds elements of `dtype`.
template <class Fn>
void Dispatch(DType dtype, Fn&& fn) {
  switch (dtype) {
    case DType::kF64:
      return fn.template operator()<double>();
    case DType::kF32:
      return fn.template operator()<float>();
    case DType::kBF16:
      return fn.template operator()<BFloat16>();
    case DType::kI32:
      return fn.template operator()<int32_t>();
    case DType::kU8:
      return fn.template operator()<uint8_t>();
  }
}

// Element i is value(i), which the type holds exactly.
Tensor Filled(int64_t size, DType dtype, Device device, const Value& value) {
  Tensor x = Tensor::Empty({size}, dtype, {});
  Dispatch(dtype, [&]<class T>() {
    for (int64_t i = 0; i < size; ++i) {
      if constexpr (std::is_same_v<T, BFloat16>) {
        x.data<T>()[i] = BFloat16::Of(static_cast<float>(value(i)));
      } else {
        x.data<T>()[i] = static_cast<T>(value(i));
      }
    }
  });
  return x.To(device);
}

std::vector<double> Read(const Tensor& x) {
  const Tensor host = x.To({});
  std::vector<double> values(x.size());
  Dispatch(x.dtype(), [&]<class T>() {
    for (int64_t i = 0; i < x.size(); ++i) values[i] = static_cast<double>(host.data<T>()[i]);
  });
  return values;
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
void CheckReductions(Communicator& world, DType dtype, Device device) {
  SCOPED_TRACE(Name(dtype));
  const int ranks = world.size();
  const Value mine = [&](int64_t i) { return (world.rank() + 1.0) * static_cast<double>(i % 5); };
  for (Reduction op : {Reduction::kSum, Reduction::kMin, Reduction::kMax}) {
    const int factor = op == Reduction::kSum   ? ranks * (ranks + 1) / 2
                       : op == Reduction::kMin ? 1
                                               : ranks;
    const auto want = [&](int64_t i) { return static_cast<double>(factor * (i % 5)); };
    for (int64_t size : {0, 1, 7, 5000}) {
      const Tensor x = Filled(size, dtype, device, mine);
      world.AllReduce(x, op);
      const std::vector<double> got = Read(x);
      for (int64_t i = 0; i < size; ++i) ASSERT_EQ(got[i], want(i)) << i;
    }
    for (const std::vector<int64_t>& counts :
         {UnevenCounts(ranks), std::vector<int64_t>(ranks, 11)}) {
      const Tensor x = Filled(Sum(counts, ranks), dtype, device, mine);
      world.ReduceScatter(x, counts, op);
      const std::vector<double> got = Read(x);
      const int64_t begin = Sum(counts, world.rank());
      for (int64_t i = begin; i < begin + counts[world.rank()]; ++i)
        ASSERT_EQ(got[i], want(i)) << i;
    }
  }
}

void CheckGathers(Communicator& world, DType dtype, Device device) {
  const int ranks = world.size(), rank = world.rank();
  for (const std::vector<int64_t>& counts :
       {UnevenCounts(ranks), std::vector<int64_t>(ranks, 11)}) {
    const int64_t begin = Sum(counts, rank), end = begin + counts[rank];
    const Tensor x = Filled(Sum(counts, ranks), dtype, device, [&](int64_t i) {
      return i >= begin && i < end ? static_cast<double>(i + 1) : 0;
    });
    world.AllGather(x, counts);
    const std::vector<double> got = Read(x);
    for (int64_t i = 0; i < x.size(); ++i) ASSERT_EQ(got[i], static_cast<double>(i + 1)) << i;
  }
}

void CheckMoves(Communicator& world, DType dtype, Device device) {
  SCOPED_TRACE(Name(dtype));
  const int ranks = world.size(), rank = world.rank();
  CheckGathers(world, dtype, device);
  for (int root = 0; root < ranks; ++root) {
    const auto want = [root](int64_t i) { return static_cast<double>(10 * root + i); };
    const Tensor y =
        Filled(9, dtype, device, [&](int64_t i) { return rank == root ? want(i) : 0; });
    world.Broadcast(y, root);
    const std::vector<double> got = Read(y);
    for (int64_t i = 0; i < 9; ++i) ASSERT_EQ(got[i], want(i));
  }

  // Rank a sends a + b elements of value 10 a + b to rank b.
  std::vector<int64_t> counts;
  std::vector<double> to, want;
  for (int r = 0; r < ranks; ++r) {
    counts.push_back(rank + r);
    to.insert(to.end(), rank + r, 10 * rank + r);
    want.insert(want.end(), rank + r, 10 * r + rank);
  }
  const int64_t size = Sum(counts, ranks);
  const Tensor x = Filled(size, dtype, device, [&](int64_t i) { return to[i]; });
  const Tensor out = Tensor::Zeros({size}, dtype, device);
  world.AllToAll(x, counts, out, counts);
  ASSERT_EQ(Read(out), want);
}

void CheckMessages(Communicator& world, Device device) {
  if (world.size() == 1) return;
  // A ring in which everyone sends before it receives, twice, with messages too long to be
  // buffered.
  const int ranks = world.size(), rank = world.rank();
  const int right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks;
  constexpr int64_t kSize = 200000;
  const auto value = [](int message, int from, int64_t i) {
    return static_cast<double>(1000 * message + from + i % 7);
  };
  std::vector<Tensor> out, in;
  std::vector<Pending> pending;
  for (int message = 0; message < 2; ++message) {
    out.push_back(
        Filled(kSize, DType::kF32, device, [&](int64_t i) { return value(message, rank, i); }));
    in.push_back(Tensor::Zeros({kSize}, DType::kF32, device));
    pending.push_back(world.SendAsync(out[message], right));
  }
  for (int message = 0; message < 2; ++message) {
    pending.push_back(world.ReceiveAsync(in[message], left));
  }
  for (const Pending& each : pending) each.Wait();
  for (int message = 0; message < 2; ++message) {
    const std::vector<double> got = Read(in[message]);
    for (int64_t i = 0; i < kSize; i += 999) ASSERT_EQ(got[i], value(message, left, i));
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

void CheckSplit(Communicator& world, Device device) {
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
  const Tensor x = Filled(3, DType::kF64, device, [](int64_t) { return 1; }), y = x.Clone();
  Pending first = half->AllReduceAsync(x, Reduction::kSum);
  Pending second = world.AllReduceAsync(y, Reduction::kSum);
  second.Wait();
  first.Wait();
  EXPECT_EQ(Read(x)[2], half->size());
  EXPECT_EQ(Read(y)[2], world.size());
  auto alone = half->Split(half->rank(), 0, "alone");
  EXPECT_EQ(alone->size(), 1);
  alone->Barrier();
}

void CheckManyInFlight(Communicator& world, Device device) {
  const int ranks = world.size();
  std::vector<Tensor> tensors;
  std::vector<Pending> pending;
  for (int k = 0; k < 24; ++k) {
    const int64_t each = 3000 + 100 * k;
    tensors.push_back(
        Filled(each * ranks, DType::kF32, device, [&](int64_t) { return world.rank() + k; }));
    const std::vector<int64_t> counts(ranks, each);
    pending.push_back(k % 3 == 0   ? world.AllReduceAsync(tensors[k], Reduction::kSum)
                      : k % 3 == 1 ? world.ReduceScatterAsync(tensors[k], counts, Reduction::kSum)
                                   : world.AllGatherAsync(tensors[k], counts));
  }
  for (int k = 23; k >= 0; --k) pending[k].Wait();
  for (int k = 0; k < 24; ++k) {
    const std::vector<double> values = Read(tensors[k]);
    EXPECT_TRUE(pending[k].done());
    const int64_t each = tensors[k].size() / ranks;
    const double sum = ranks * (ranks - 1) / 2 + ranks * k;
    for (int r = 0; r < ranks; ++r) {
      const double got = values[r * each + each - 1];
      if (k % 3 == 2) {
        EXPECT_EQ(got, r + k) << k;
      } else if (k % 3 == 0 || r == world.rank()) {
        EXPECT_EQ(got, sum) << k;
      }
    }
  }
}

}  // namespace

void CheckEveryCollective(Communicator& world, Device device) {
  std::vector<DType> dtypes = {DType::kF32, DType::kF64, DType::kI32, DType::kU8};
  if (device.backend == Backend::kCuda) dtypes.push_back(DType::kBF16);
  for (DType dtype : dtypes) {
    CheckReductions(world, dtype, device);
    CheckMoves(world, dtype, device);
  }
  CheckMessages(world, device);
  CheckStrings(world);
  CheckSplit(world, device);
  CheckManyInFlight(world, device);
  world.Barrier();
  // What a GPU has done is seen a moment later.
  for (int i = 0; i < 100 && world.recorder().OldestUnfinished().has_value(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_FALSE(world.recorder().OldestUnfinished().has_value());
}

}  // namespace lt2
