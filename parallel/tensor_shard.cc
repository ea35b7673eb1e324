#include "parallel/tensor_shard.h"

#include <algorithm>
#include <utility>

#include "kernels/elementwise.h"
#include "parallel/token_row.h"

namespace lt2 {
namespace {

bool Shares(const TensorShard* shard) { return shard != nullptr && shard->sequence(); }

Tensor Own(const TensorShard& shard, const Tensor& all) {
  return all.Rows(shard.Begin(shard.rank()), shard.Begin(shard.rank() + 1));
}

// Elements of each rank's tokens in a tensor of all.
std::vector<int64_t> Counts(const TensorShard& shard, const Tensor& all) {
  CHECK_EQ(all.dim(0), shard.tokens());
  const int64_t row = shard.tokens() == 0 ? 0 : all.size() / shard.tokens();
  std::vector<int64_t> counts;
  for (int r = 0; r < shard.size(); ++r)
    counts.push_back(row * (shard.Begin(r + 1) - shard.Begin(r)));
  return counts;
}

// What is there once the message has come.
struct Coming {
  Tensor value;
  Pending pending;
  Tensor Wait() const {
    pending.Wait();
    return value;
  }
};

Tensor EmptyAll(const TensorShard& shard, const Tensor& own) {
  Shape shape = own.shape();
  shape[0] = shard.tokens();
  return Tensor::Empty(shape, own.dtype(), own.device());
}

Coming GatherAsync(const TensorShard& shard, const Tensor& own, const char* label) {
  const Tensor all = EmptyAll(shard, own);
  Own(shard, all).CopyFrom(own);
  return {all, shard.tp().AllGatherAsync(all, Counts(shard, all), label)};
}

Tensor Gather(const TensorShard& shard, const Tensor& own, const char* label) {
  return GatherAsync(shard, own, label).Wait();
}

// Over ranks, in the place of `summand`: of all tokens, or where there are shares of the own ones.
Coming SumInPlaceAsync(const TensorShard& shard, const Tensor& summand, const char* label) {
  Communicator& tp = shard.tp();
  if (!shard.sequence()) return {summand, tp.AllReduceAsync(summand, Reduction::kSum, label)};
  const std::vector<int64_t> counts = Counts(shard, summand);
  return {Own(shard, summand), tp.ReduceScatterAsync(summand, counts, Reduction::kSum, label)};
}

// Memory that a collective may write: its own where nobody else reads it.
Tensor Writable(const Tensor& x) { return x.unique() ? x : x.Clone(); }

// A share's rows alone are held on to, not all that they lie among.
void PassShare(Stream& stream, GradSlot& slot, const Tensor& share) {
  PassGradient(stream, slot, slot.accumulate() ? share : share.Clone());
}

// The node of all tokens, gathered of x where there are shares, before they are read.
Var RecordEntrance(Tape& tape, const Var& x_ND, Var all, TensorShard* shard) {
  if (shard->sequence()) {  // backward may gather again, and until then hold the share alone
    all = tape.Made(all.value, [shard, x = Tape::Save(x_ND)]() -> Rebuildable::Make {
      const Coming again = GatherAsync(*shard, x.get(), "tokens into a layer");
      return [again] { return again.Wait(); };
    });
  }
  const auto launch = [&stream = tape.stream(), shard](std::span<const Tensor> dy) -> FinishGrad {
    const Coming sum = SumInPlaceAsync(*shard, Writable(dy[0]), "gradients before a layer");
    return [&stream, shard, sum](std::span<GradSlot> dx) {
      shard->sequence() ? PassShare(stream, dx[0], sum.Wait())
                        : PassGradient(stream, dx[0], sum.Wait());
    };
  };
  return tape.Record({x_ND}, all, {.name = "enter_layer", .launch_grad = launch});
}

}  // namespace

TensorShard::TensorShard(Communicator& tp, bool sequence, int64_t tokens, const Pieces& limits)
    : tp_(tp), sequence_(sequence), tokens_(tokens), limits_(limits) {}

void TensorShard::Sum(const Tensor& x) { tp_.AllReduce(x, Reduction::kSum, "sum over parts"); }

void TensorShard::Max(const Tensor& x) { tp_.AllReduce(x, Reduction::kMax, "maximum over parts"); }

int64_t TensorShard::Begin(int rank) const { return ShardBegin(tokens_, tp_.size(), rank); }

int64_t TensorShard::pieces() const {
  return std::clamp<int64_t>(tokens_ / size() / limits_.least_rows, 1, limits_.most);
}

int64_t TensorShard::Begin(int rank, int64_t piece) const {
  return Begin(rank) + (Begin(rank + 1) - Begin(rank)) * piece / pieces();
}

template <class Fn>
void TensorShard::ForEachRun(int64_t piece, const Fn& fn) const {
  if (pieces() == 1) return fn(0, tokens_, 0);
  int64_t at = 0;
  for (int r = 0; r < size(); ++r) {
    const int64_t begin = Begin(r, piece), end = Begin(r, piece + 1);
    fn(begin, end, at);
    at += end - begin;
  }
}

struct TensorShard::Piece {
  Tensor rows, own;  // of all ranks, one after another; those of this rank among them
  std::vector<int64_t> counts;
  Pending pending;
};

TensorShard::Piece TensorShard::EmptyPiece(int64_t piece, int64_t columns,
                                           const Tensor& like) const {
  Piece made;
  int64_t all = 0, before = 0;
  for (int r = 0; r < size(); ++r) {
    const int64_t rows = Begin(r, piece + 1) - Begin(r, piece);
    if (r < rank()) before += rows;
    all += rows;
    made.counts.push_back(rows * columns);
  }
  made.rows = Tensor::Empty({all, columns}, like.dtype(), like.device());
  made.own = made.rows.Rows(before, before + made.counts[rank()] / columns);
  return made;
}

Tensor TensorShard::OwnRows(const Tensor& own, int64_t piece) const {
  return own.Rows(Begin(rank(), piece) - Begin(rank()), Begin(rank(), piece + 1) - Begin(rank()));
}

Tensor TensorShard::SumRows(int64_t columns, const Tensor& like, const MakeRows& make) {
  CHECK(sequence_);
  std::vector<Piece> made;
  for (int64_t i = 0; i < pieces(); ++i) {
    Piece& piece = made.emplace_back(EmptyPiece(i, columns, like));
    ForEachRun(i, [&](int64_t begin, int64_t end, int64_t at) {
      make(begin, end, piece.rows.Rows(at, at + end - begin));
    });
    piece.pending =
        tp_.ReduceScatterAsync(piece.rows, piece.counts, Reduction::kSum, "tokens out of a layer");
  }
  const int64_t own = Begin(rank() + 1) - Begin(rank());
  const Tensor sums = Tensor::Empty({own, columns}, like.dtype(), like.device());
  for (int64_t i = 0; i < pieces(); ++i) {
    const Piece piece = std::exchange(made[i], {});
    piece.pending.Wait();
    OwnRows(sums, i).CopyFrom(piece.own);
  }
  return sums;
}

void TensorShard::GatherPieces(const Tensor& own, const Tensor& all, const UseRows& use,
                               const char* label) {
  CHECK(sequence_);
  if (pieces() == 1) {
    Own(*this, all).CopyFrom(own);
    tp_.AllGather(all, Counts(*this, all), label);
    return use(0, tokens_, all);
  }
  std::vector<Piece> coming;
  for (int64_t i = 0; i < pieces(); ++i) {
    Piece& piece = coming.emplace_back(EmptyPiece(i, own.dim(1), own));
    piece.own.CopyFrom(OwnRows(own, i));
    piece.pending = tp_.AllGatherAsync(piece.rows, piece.counts, label);
  }
  for (int64_t i = 0; i < pieces(); ++i) {
    const Piece piece = std::exchange(coming[i], {});
    piece.pending.Wait();
    ForEachRun(i, [&](int64_t begin, int64_t end, int64_t at) {
      const Tensor rows = piece.rows.Rows(at, at + end - begin);
      use(begin, end, rows);
      all.Rows(begin, end).CopyFrom(rows);
    });
  }
}

Tensor TensorShard::GatherRows(const Tensor& own, const UseRows& use) {
  const Tensor all = EmptyAll(*this, own);
  GatherPieces(own, all, use, "gradients after a layer");
  return all;
}

Var TensorShard::EnterRows(Tape& tape, const Var& own, const UseRows& use) {
  const Tensor all = EmptyAll(*this, own.value);
  const Var entered = RecordEntrance(tape, own, {.value = all}, this);
  GatherPieces(own.value, all, use, "tokens into a layer");
  return entered;
}

Var EnterLayer(Tape& tape, const Var& x_ND, TensorShard* shard) {
  if (shard == nullptr) return x_ND;
  if (!shard->sequence()) return RecordEntrance(tape, x_ND, x_ND, shard);
  const Tensor all = Gather(*shard, x_ND.value, "tokens into a layer");
  return RecordEntrance(tape, x_ND, {.value = all}, shard);
}

Var LeaveLayer(Tape& tape, Var y_ND, TensorShard* shard) {
  if (shard == nullptr) return y_ND;
  const auto sum = [&] {
    const Tensor summand = y_ND.source ? y_ND.value.Clone() : Writable(y_ND.value);
    return SumInPlaceAsync(*shard, summand, "tokens out of a layer").Wait();
  };
  const Tensor out = shard->sequence()
                         ? tape.Kept([&]() -> std::vector<Tensor> { return {sum().Clone()}; })[0]
                         : sum();
  auto backward = [&stream = tape.stream(), shard](std::span<const Tensor> dy,
                                                   std::span<GradSlot> dx) {
    PassGradient(stream, dx[0],
                 shard->sequence() ? Gather(*shard, dy[0], "gradients after a layer") : dy[0]);
  };
  return tape.Record({y_ND}, out, {.name = "leave_layer", .input_grad = std::move(backward)});
}

Var GatherShares(Tape& tape, const Var& x, TensorShard* shard) {
  if (!Shares(shard)) return x;
  auto backward = [&stream = tape.stream(), shard](std::span<const Tensor> dy,
                                                   std::span<GradSlot> dx) {
    PassShare(stream, dx[0], Own(*shard, dy[0]));
  };
  return tape.Record({x}, Gather(*shard, x.value, "shares of tokens"),
                     {.name = "gather_shares", .input_grad = std::move(backward)});
}

Var OwnShare(Tape& tape, const Var& x, TensorShard* shard) {
  if (!Shares(shard)) return x;
  auto backward = [&stream = tape.stream(), shard](std::span<const Tensor> dy,
                                                   std::span<GradSlot> dx) {
    PassGradient(stream, dx[0], Gather(*shard, dy[0], "gradients of shares"));
  };
  return tape.Record({x}, Own(*shard, x.value).Clone(),
                     {.name = "own_share", .input_grad = std::move(backward)});
}

}  // namespace lt2
