// The ways into a divided layer and out of it, in whole numbers: nothing rounds. And a layer of two
// products, divided, against one rank.
#include "parallel/tensor_shard.h"

#include <gtest/gtest.h>

#include <mutex>
#include <numeric>

#include "core/allocator.h"
#include "core/strings.h"
#include "kernels/activation.h"
#include "kernels/add.h"
#include "kernels/case.h"
#include "kernels/linear.h"
#include "parallel/thread_communicator.h"

namespace lt2 {
namespace {

constexpr int64_t kWidth = 3;

// Rows [begin, end) of a row of tokens, no two elements alike.
std::vector<double> RowsOf(int64_t begin, int64_t end, double offset = 0) {
  std::vector<double> values((end - begin) * kWidth);
  std::iota(values.begin(), values.end(), offset + begin * kWidth);
  return values;
}

Tensor Rows(const std::vector<double>& values, DType dtype) {
  return Tensor::FromHost(values, {static_cast<int64_t>(values.size()) / kWidth, kWidth}, dtype,
                          {});
}

double Dot(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

enum class Recomputed { kNo, kYes };

struct Mesh {
  int ranks;
  bool sequence;
  int64_t tokens;  // as many as divide evenly, or not, or fewer than ranks
};

// check(shard, begin and end of what a rank has between layers, dtype, recomputed)
template <class Check>
void OnEveryMesh(const Check& check) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const bool sequence : {false, true}) {
      for (const int64_t tokens : {12, 11, 2}) {
        for (const DType dtype : {DType::kF64, DType::kF32}) {
          for (const Recomputed recomputed : {Recomputed::kNo, Recomputed::kYes}) {
            SCOPED_TRACE(StrCat(ranks, " ranks, ", tokens, " tokens, sequence ", sequence));
            RunRanks(ranks, [&](Communicator& tp) {
              TensorShard shard(tp, sequence, tokens);
              const int64_t begin = sequence ? shard.Begin(tp.rank()) : 0;
              const int64_t end = sequence ? shard.Begin(tp.rank() + 1) : tokens;
              check(shard, begin, end, dtype, recomputed);
            });
          }
        }
      }
    }
  }
}

struct Result {
  std::vector<double> y, dx;
};

// y = op(x), with x read twice, so that one gradient is written and one added, and both readers
// given the same memory dy, which stays as it is. dx is twice the gradient.
template <class Fn>
Result RunTwice(const Fn& op, const std::vector<double>& x, const std::vector<double>& dy,
                DType dtype, Recomputed recomputed) {
  Stream stream;
  Tape tape(stream);
  const Var in = tape.Input(Rows(x, dtype), /*needs_grad=*/true);
  const auto both = [&](Tape& t, std::span<const Var> from) {
    return std::vector<Var>{Add(t, op(t, from[0]), op(t, from[0]))};
  };
  const Var twice = (recomputed == Recomputed::kYes ? tape.Recompute(std::span(&in, 1), both)
                                                    : both(tape, std::span(&in, 1)))[0];
  EXPECT_EQ(in.value.ToDoubles(), x);
  const Tensor gradient = Rows(dy, dtype);
  const Tensor dx = tape.Backward({{twice, gradient}}, std::span(&in, 1))[0];
  EXPECT_EQ(gradient.ToDoubles(), dy);
  std::vector<double> y = twice.value.ToDoubles();
  for (double& value : y) value /= 2;
  return {y, dx.ToDoubles()};
}

// What every rank has by `of_rank`, summed and `times` so much.
template <class Fn>
std::vector<double> SumOverRanks(int ranks, double times, const Fn& of_rank) {
  std::vector<double> sum = of_rank(0);
  for (int r = 1; r < ranks; ++r) {
    const std::vector<double> other = of_rank(r);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += other[i];
  }
  for (double& value : sum) value *= times;
  return sum;
}

TEST(TensorShard, EnterLayer) {
  OnEveryMesh([](TensorShard& shard, int64_t begin, int64_t end, DType dtype, Recomputed again) {
    const auto dy = [&](int r) { return RowsOf(0, shard.tokens(), 100 * r); };
    const Result got = RunTwice([&](Tape& t, const Var& x) { return EnterLayer(t, x, &shard); },
                                RowsOf(begin, end), dy(shard.rank()), dtype, again);
    EXPECT_EQ(got.y, RowsOf(0, shard.tokens()));
    const std::vector<double> all = SumOverRanks(shard.size(), 2, dy);
    EXPECT_EQ(got.dx,
              std::vector<double>(all.begin() + begin * kWidth, all.begin() + end * kWidth));
  });
}

TEST(TensorShard, LeaveLayer) {
  OnEveryMesh([](TensorShard& shard, int64_t begin, int64_t end, DType dtype, Recomputed again) {
    const auto summand = [&](int r) { return RowsOf(0, shard.tokens(), 100 * r); };
    const Result got = RunTwice([&](Tape& t, const Var& y) { return LeaveLayer(t, y, &shard); },
                                summand(shard.rank()), RowsOf(begin, end, 7), dtype, again);
    const std::vector<double> sum = SumOverRanks(shard.size(), 1, summand);
    EXPECT_EQ(got.y, std::vector<double>(sum.begin() + begin * kWidth, sum.begin() + end * kWidth));
    EXPECT_EQ(got.dx, SumOverRanks(1, 2, [&](int) { return RowsOf(0, shard.tokens(), 7); }));
  });
}

TEST(TensorShard, GatherShares) {
  OnEveryMesh([](TensorShard& shard, int64_t begin, int64_t end, DType dtype, Recomputed again) {
    const Result got = RunTwice([&](Tape& t, const Var& x) { return GatherShares(t, x, &shard); },
                                RowsOf(begin, end), RowsOf(0, shard.tokens(), 7), dtype, again);
    EXPECT_EQ(got.y, RowsOf(0, shard.tokens()));
    EXPECT_EQ(got.dx, SumOverRanks(1, 2, [&](int) { return RowsOf(begin, end, 7); }));
  });
}

TEST(TensorShard, OwnShare) {
  OnEveryMesh([](TensorShard& shard, int64_t begin, int64_t end, DType dtype, Recomputed again) {
    const Result got = RunTwice([&](Tape& t, const Var& x) { return OwnShare(t, x, &shard); },
                                RowsOf(0, shard.tokens()), RowsOf(begin, end, 7), dtype, again);
    EXPECT_EQ(got.y, RowsOf(begin, end));
    EXPECT_EQ(got.dx, SumOverRanks(1, 2, [&](int) { return RowsOf(0, shard.tokens(), 7); }));
  });
}

// <A x, y> = <x, A' y>, each over all ranks; what every rank has alike counts once.
TEST(TensorShard, BackwardIsTheAdjoint) {
  OnEveryMesh([](TensorShard& shard, int64_t begin, int64_t end, DType dtype, Recomputed again) {
    const bool counts = shard.sequence() || shard.rank() == 0;
    const auto over_ranks = [&](double mine) {
      const Tensor sum = Tensor::FromHost(std::vector<double>{mine}, {1}, DType::kF64, {});
      shard.Sum(sum);
      return sum.ToDoubles()[0];
    };
    const std::vector<double> between = RowsOf(begin, end, 3);
    const std::vector<double> within = RowsOf(0, shard.tokens(), 5 + 10 * shard.rank());
    const Result enter = RunTwice([&](Tape& t, const Var& x) { return EnterLayer(t, x, &shard); },
                                  between, within, dtype, again);
    EXPECT_EQ(2 * over_ranks(Dot(enter.y, within)),
              over_ranks(counts ? Dot(between, enter.dx) : 0));
    const Result leave = RunTwice([&](Tape& t, const Var& y) { return LeaveLayer(t, y, &shard); },
                                  within, between, dtype, again);
    EXPECT_EQ(2 * over_ranks(counts ? Dot(leave.y, between) : 0),
              over_ranks(Dot(within, leave.dx)));
  });
}

TEST(TensorShard, WithoutAShardNothingIsRecorded) {
  Stream stream;
  Tape tape(stream);
  const Var x = tape.Input(Rows(RowsOf(0, 2), DType::kF64), /*needs_grad=*/true);
  for (const Var& y : {EnterLayer(tape, x, nullptr), LeaveLayer(tape, x, nullptr),
                       GatherShares(tape, x, nullptr), OwnShare(tape, x, nullptr)}) {
    EXPECT_EQ(y.id, x.id);
    EXPECT_TRUE(y.value.SharesStorageWith(x.value));
  }
}

TEST(TensorShard, SumsAndMaximaOverParts) {
  RunRanks(3, [](Communicator& tp) {
    TensorShard shard(tp, false, 5);
    const double r = tp.rank();
    const Tensor x = Tensor::FromHost(std::vector<double>{r, -r, 1}, {3}, DType::kF32, {});
    const Tensor most = x.Clone();
    shard.Sum(x);
    shard.Max(most);
    EXPECT_EQ(x.ToDoubles(), (std::vector<double>{3, -3, 3}));
    EXPECT_EQ(most.ToDoubles(), (std::vector<double>{2, 0, 1}));
  });
}

// A layer: silu(x W1') W2', hidden channels divided.
struct Layer {
  std::vector<double> y, dx, dw1, dw2;
};
constexpr int64_t kIn = 5, kHidden = 12, kTokens = 11;

Tensor Random(const char* name, const Shape& shape) {
  return Tensor::FromHost(RandomNormal(1, name, shape).values, shape, DType::kF64, {});
}

// Columns [begin, end) of x.
Tensor Columns(const Tensor& x, int64_t begin, int64_t end) {
  const std::vector<double> all = x.ToDoubles();
  std::vector<double> values;
  for (int64_t n = 0; n < x.dim(0); ++n) {
    values.insert(values.end(), all.begin() + n * x.dim(1) + begin,
                  all.begin() + n * x.dim(1) + end);
  }
  return Tensor::FromHost(values, {x.dim(0), end - begin}, DType::kF64, {});
}

Layer RunLayer(int rank, int ranks, TensorShard* shard, Recomputed recomputed) {
  const int64_t first = kHidden * rank / ranks, last = kHidden * (rank + 1) / ranks;
  const int64_t begin = shard != nullptr && shard->sequence() ? shard->Begin(rank) : 0;
  const int64_t end = shard != nullptr && shard->sequence() ? shard->Begin(rank + 1) : kTokens;
  Param w1({.name = "w1", .shape = {last - first, kIn}}, DType::kF64, {});
  Param w2({.name = "w2", .shape = {kIn, last - first}}, DType::kF64, {});
  w1.value.CopyFrom(Random("w1", {kHidden, kIn}).Rows(first, last));
  w2.value.CopyFrom(Columns(Random("w2", {kIn, kHidden}), first, last));
  for (Param* w : {&w1, &w2}) {
    w->BindGradient(Tensor::Zeros(w->spec.shape, DType::kF64, {}));
    w->ExpectUses(1);
  }
  Stream stream;
  Tape tape(stream);
  tape.set_rebuild(Rebuild::kCheap);
  const Var x = tape.Input(Random("x", {kTokens, kIn}).Rows(begin, end), /*needs_grad=*/true);
  const auto layer = [&](Tape& t, std::span<const Var> in) {
    const Var hidden = Silu(t, Linear(t, EnterLayer(t, in[0], shard), w1));
    return std::vector<Var>{LeaveLayer(t, Linear(t, hidden, w2), shard)};
  };
  const Var y = (recomputed == Recomputed::kYes ? tape.Recompute(std::span(&x, 1), layer)
                                                : layer(tape, std::span(&x, 1)))[0];
  const Tensor dx =
      tape.Backward({{y, Random("dy", {kTokens, kIn}).Rows(begin, end)}}, std::span(&x, 1))[0];
  return {y.value.ToDoubles(), dx.ToDoubles(), w1.main_grad.ToDoubles(), w2.main_grad.ToDoubles()};
}

void ExpectNear(const std::vector<double>& got, const Tensor& want) {
  const HostArray expected{want.shape(), want.ToDoubles()};
  EXPECT_LE(RelativeError({want.shape(), got}, expected), 1e-14);
}

TEST(TensorShard, ADividedLayerIsTheLayer) {
  const Layer one = RunLayer(0, 1, nullptr, Recomputed::kNo);
  const auto whole = [](const std::vector<double>& values, int64_t columns) {
    return Tensor::FromHost(values, {static_cast<int64_t>(values.size()) / columns, columns},
                            DType::kF64, {});
  };
  for (const int ranks : {1, 2, 3}) {
    for (const bool sequence : {false, true}) {
      for (const Recomputed recomputed : {Recomputed::kNo, Recomputed::kYes}) {
        SCOPED_TRACE(StrCat(ranks, " ranks, sequence ", sequence));
        RunRanks(ranks, [&](Communicator& tp) {
          TensorShard shard(tp, sequence, kTokens);
          const Layer got = RunLayer(tp.rank(), ranks, &shard, recomputed);
          const int64_t begin = sequence ? shard.Begin(tp.rank()) : 0;
          const int64_t end = sequence ? shard.Begin(tp.rank() + 1) : kTokens;
          const int64_t first = kHidden * tp.rank() / ranks;
          const int64_t last = kHidden * (tp.rank() + 1) / ranks;
          ExpectNear(got.y, whole(one.y, kIn).Rows(begin, end));
          ExpectNear(got.dx, whole(one.dx, kIn).Rows(begin, end));
          ExpectNear(got.dw1, whole(one.dw1, kIn).Rows(first, last));
          ExpectNear(got.dw2, Columns(whole(one.dw2, kHidden), first, last));
          if (ranks > 1) return;
          for (const auto member : {&Layer::y, &Layer::dx, &Layer::dw1, &Layer::dw2}) {
            EXPECT_EQ(got.*member, one.*member);
          }
        });
      }
    }
  }
}

// With shares recompute need not sum a layer's output again, and a tape that makes again what it
// can holds shares alone.
TEST(TensorShard, WhatIsHeldAndWhatTravels) {
  constexpr int64_t kMany = 4096, kBytes = kMany * kWidth * 8;
  const std::unique_ptr<Communicator> tp = MakeMetaCommunicator(1, 4);
  TensorShard shard(*tp, /*sequence=*/true, kMany);
  Stream stream{.device = {Backend::kMeta}};
  for (const Recomputed recomputed : {Recomputed::kNo, Recomputed::kYes}) {
    const MetaMeter meter;
    Tape tape(stream);
    tape.set_rebuild(Rebuild::kCheap);
    const Var x = tape.Input(Tensor::Empty({kMany / 4, kWidth}, DType::kF64, stream.device),
                             /*needs_grad=*/true);
    const auto through = [&](Tape& t, std::span<const Var> in) {
      return std::vector<Var>{LeaveLayer(t, Silu(t, EnterLayer(t, in[0], &shard)), &shard)};
    };
    const std::vector<Var> y = recomputed == Recomputed::kYes
                                   ? tape.Recompute(std::span(&x, 1), through)
                                   : through(tape, std::span(&x, 1));
    EXPECT_EQ(y[0].shape(), x.shape());
    EXPECT_EQ(meter.memory().live, kBytes / 4 * 2);
    const Tensor dx = tape.Backward({{y[0], x.value.Clone()}}, std::span(&x, 1))[0];
    EXPECT_EQ(dx.shape(), x.shape());
    EXPECT_LE(meter.memory().peak, 4 * kBytes);
  }
  RunRanks(2, [](Communicator& world) {
    TensorShard of_tokens(world, /*sequence=*/true, kTokens);
    RunLayer(world.rank(), 2, &of_tokens, Recomputed::kNo);
    const int64_t plain = world.traffic().messages;
    RunLayer(world.rank(), 2, &of_tokens, Recomputed::kYes);
    // In, and in again for the weights' gradients; out; and the gradients' two ways. Recompute
    // goes in once more.
    EXPECT_EQ(plain, 5);
    EXPECT_EQ(world.traffic().messages, plain + 6);
  });
}

}  // namespace
}  // namespace lt2
