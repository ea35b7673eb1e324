#include "parallel/tensor_shard.h"

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

Tensor Gather(const TensorShard& shard, const Tensor& own, const char* label) {
  Shape shape = own.shape();
  shape[0] = shard.tokens();
  const Tensor all = Tensor::Empty(shape, own.dtype(), own.device());
  Own(shard, all).CopyFrom(own);
  shard.tp().AllGather(all, Counts(shard, all), label);
  return all;
}

// Over ranks, in the place of `summand`: of all tokens, or where there are shares of the own ones.
Tensor SumInPlace(const TensorShard& shard, const Tensor& summand, const char* label) {
  if (!shard.sequence()) {
    shard.tp().AllReduce(summand, Reduction::kSum, label);
    return summand;
  }
  shard.tp().ReduceScatter(summand, Counts(shard, summand), Reduction::kSum, label);
  return Own(shard, summand);
}

// Memory that a collective may write: its own where nobody else reads it.
Tensor Writable(const Tensor& x) { return x.unique() ? x : x.Clone(); }

// A share's rows alone are held on to, not all that they lie among.
void PassShare(Stream& stream, GradSlot& slot, const Tensor& share) {
  PassGradient(stream, slot, slot.accumulate() ? share : share.Clone());
}

}  // namespace

TensorShard::TensorShard(Communicator& tp, bool sequence, int64_t tokens)
    : tp_(tp), sequence_(sequence), tokens_(tokens) {}

void TensorShard::Sum(const Tensor& x) { tp_.AllReduce(x, Reduction::kSum, "sum over parts"); }

void TensorShard::Max(const Tensor& x) { tp_.AllReduce(x, Reduction::kMax, "maximum over parts"); }

int64_t TensorShard::Begin(int rank) const { return ShardBegin(tokens_, tp_.size(), rank); }

Var EnterLayer(Tape& tape, const Var& x_ND, TensorShard* shard) {
  if (shard == nullptr) return x_ND;
  auto backward = [&stream = tape.stream(), shard](std::span<const Tensor> dy,
                                                   std::span<GradSlot> dx) {
    const Tensor sum = SumInPlace(*shard, Writable(dy[0]), "gradients before a layer");
    shard->sequence() ? PassShare(stream, dx[0], sum) : PassGradient(stream, dx[0], sum);
  };
  Var all = x_ND;
  if (shard->sequence()) {  // backward may gather again, and until then hold the share alone
    all = tape.Make(
        [shard, x = Tape::Save(x_ND)] { return Gather(*shard, x.get(), "tokens into a layer"); });
  }
  return tape.Record({x_ND}, all, {.name = "enter_layer", .input_grad = std::move(backward)});
}

Var LeaveLayer(Tape& tape, Var y_ND, TensorShard* shard) {
  if (shard == nullptr) return y_ND;
  const auto sum = [&] {
    const Tensor summand = y_ND.source ? y_ND.value.Clone() : Writable(y_ND.value);
    return SumInPlace(*shard, summand, "tokens out of a layer");
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
