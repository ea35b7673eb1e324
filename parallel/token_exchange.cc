#include "parallel/token_exchange.h"

#include <utility>

#include "kernels/elementwise.h"
#include "parallel/token_passing.h"

namespace lt2 {
namespace {

Shape WithRows(const Shape& shape, int64_t rows) {
  Shape with = shape;
  with[0] = rows;
  return with;
}

Tensor EmptyLike(const Tensor& x, int64_t rows) {
  return Tensor::Empty(WithRows(x.shape(), rows), x.dtype(), x.device());
}

int64_t RowElements(std::span<const Tensor> tensors) {
  int64_t elements = 0;
  for (const Tensor& x : tensors) elements += x.size() / x.dim(0);
  return elements;
}

// Who reads which rows of whom: rank `reader` the `reach` rows before its own.
class HaloPlan {
 public:
  HaloPlan(const ContextShard& shard, int64_t reach)
      : shard_(shard), reach_(reach), rank_(shard.cp().rank()), ranks_(shard.cp().size()) {}

  struct Rows {
    int64_t begin = 0, end = 0;  // in the row of tokens
    int64_t count() const { return end - begin; }
  };
  Rows Read(int reader, int owner) const {
    const int64_t end = std::min(shard_.Begin(owner + 1), shard_.Begin(reader));
    const int64_t begin =
        std::max(shard_.Begin(owner), shard_.Begin(reader) - shard_.Halo(reach_, reader));
    return {begin, std::max(begin, end)};
  }
  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  // Elements by other rank: of own rows that it reads, and of its rows that this rank reads.
  std::vector<int64_t> Lent(int64_t row_elements) const {
    return Counts([&](int other) { return Read(other, rank_).count() * row_elements; });
  }
  std::vector<int64_t> Borrowed(int64_t row_elements) const {
    return Counts([&](int other) { return Read(rank_, other).count() * row_elements; });
  }
  static int64_t Sum(const std::vector<int64_t>& counts) {
    int64_t sum = 0;
    for (int64_t count : counts) sum += count;
    return sum;
  }

 private:
  template <class Fn>
  std::vector<int64_t> Counts(const Fn& count) const {
    std::vector<int64_t> counts;
    for (int other = 0; other < ranks_; ++other) counts.push_back(count(other));
    return counts;
  }

  const ContextShard& shard_;
  const int64_t reach_;
  const int rank_, ranks_;
};

// fn(other rank, tensor, its rows, where they lie in the message) for a message in which each
// tensor's rows follow each other, by rank.
template <class RowsOf, class Fn>
void ForEachPart(const HaloPlan& plan, std::span<const Tensor> tensors, const RowsOf& rows_of,
                 const Tensor& message, const Fn& fn) {
  int64_t at = 0;
  for (int other = 0; other < plan.ranks(); ++other) {
    const HaloPlan::Rows rows = rows_of(other);
    for (size_t i = 0; i < tensors.size(); ++i) {
      const int64_t size = rows.count() * (tensors[i].size() / tensors[i].dim(0));
      if (size > 0) fn(i, rows, message.Flat(at, size));
      at += size;
    }
  }
}

Tensor Message(const Tensor& like, int64_t elements) {
  return Tensor::Empty({std::max<int64_t>(elements, 1)}, like.dtype(), like.device())
      .Flat(0, elements);
}

// In memory of its own.
void AddOwn(Stream& stream, const Tensor& own, GradSlot& dx) {
  if (!dx.wanted()) return;
  const bool add = dx.accumulate();
  const Tensor to = dx.to();
  add ? AccumulateInto(stream, to, own) : to.CopyFrom(own);
}

std::vector<Tensor> ValuesOf(std::span<const Var> x) {
  std::vector<Tensor> values;
  for (const Var& var : x) values.push_back(var.value);
  return values;
}

}  // namespace

std::vector<Var> LeftContext(Tape& tape, std::span<const Var> x, ContextShard& shard, int64_t reach,
                             const Meanwhile& meanwhile) {
  if (shard.cp().in_turn()) {
    std::vector<Var> passed = PassContext(tape, x, shard, reach);
    meanwhile();
    return passed;
  }
  const int64_t begin = shard.begin(), tokens = shard.tokens(), halo = shard.Halo(reach);
  const auto plan = std::make_shared<const HaloPlan>(shard, reach);
  const auto lent = [plan](int other) { return plan->Read(other, plan->rank()); };
  const auto borrowed = [plan](int other) { return plan->Read(plan->rank(), other); };
  const std::vector<Tensor> values = ValuesOf(x);
  const int64_t row = RowElements(values);
  const std::vector<int64_t> sent = plan->Lent(row), received = plan->Borrowed(row);
  Communicator& cp = shard.cp();

  // Only what comes from others survives recompute: the own rows are made again there.
  Pending pending;
  const Tensor receive = tape.Kept([&]() -> std::vector<Tensor> {
    const Tensor send = Message(values[0], HaloPlan::Sum(sent));
    const Tensor message = Message(values[0], HaloPlan::Sum(received));
    ForEachPart(*plan, values, lent, send, [&](size_t i, HaloPlan::Rows rows, const Tensor& part) {
      part.CopyFrom(values[i].Rows(rows.begin - begin, rows.end - begin));
    });
    pending = cp.AllToAllAsync(send, sent, message, received, "tokens to the right");
    return {message};
  })[0];
  const UnderWay under_way(tape, x, "left_context");
  meanwhile();
  std::vector<Tensor> out;
  for (const Tensor& value : values) {
    out.push_back(EmptyLike(value, halo + tokens));
    out.back().Rows(halo, halo + tokens).CopyFrom(value);
  }
  pending.Wait();
  const int64_t first = begin - halo;
  ForEachPart(*plan, values, borrowed, receive,
              [&](size_t i, HaloPlan::Rows rows, const Tensor& part) {
                out[i].Rows(rows.begin - first, rows.end - first).CopyFrom(part);
              });

  auto backward = [&stream = tape.stream(), plan, lent, borrowed, sent, received, begin, halo,
                   tokens, &cp,
                   under_way](std::span<const Tensor> dy, std::span<GradSlot> launched) {
    const std::vector<Tensor> given(dy.begin(), dy.end());
    for (const Tensor& gradient : given) CHECK(gradient.defined()) << "tokens that nobody reads";
    const Tensor send = Message(given[0], HaloPlan::Sum(received));
    const Tensor receive = Message(given[0], HaloPlan::Sum(sent));
    const int64_t first = begin - halo;
    ForEachPart(*plan, given, borrowed, send,
                [&](size_t i, HaloPlan::Rows rows, const Tensor& part) {
                  part.CopyFrom(given[i].Rows(rows.begin - first, rows.end - first));
                });
    const Pending pending =
        cp.AllToAllAsync(send, received, receive, sent, "gradients to the left");
    under_way.HandOver(launched[0], [&stream, plan, lent, given, receive, pending, begin, halo,
                                     tokens](std::span<GradSlot> dx) {
      for (size_t i = 0; i < given.size(); ++i) {
        AddOwn(stream, given[i].Rows(halo, halo + tokens), dx[i]);
      }
      pending.Wait();
      ForEachPart(
          *plan, given, lent, receive, [&](size_t i, HaloPlan::Rows rows, const Tensor& part) {
            if (!dx[i].wanted()) return;
            AccumulateInto(stream, dx[i].to().Rows(rows.begin - begin, rows.end - begin), part);
          });
    });
  };
  return tape.Record({&under_way.launched(), 1}, std::move(out),
                     {.name = "left_context", .input_grad = std::move(backward)});
}

std::vector<Var> GatherTokens(Tape& tape, std::span<const Var> x, ContextShard& shard) {
  Communicator& cp = shard.cp();
  if (cp.in_turn()) return PassContext(tape, x, shard, shard.row_tokens());
  const int64_t begin = shard.begin(), tokens = shard.tokens(), all = shard.row_tokens();
  const auto counts = [&shard, &cp](const Tensor& of) {
    std::vector<int64_t> elements;
    for (int r = 0; r < cp.size(); ++r) {
      elements.push_back((shard.Begin(r + 1) - shard.Begin(r)) * (of.size() / of.dim(0)));
    }
    return elements;
  };
  // Not kept through recompute, which would have to hold the row for every layer visit.
  std::vector<Tensor> out;
  std::vector<Pending> gathers;
  for (const Var& var : x) {
    out.push_back(EmptyLike(var.value, all));
    out.back().Rows(begin, begin + tokens).CopyFrom(var.value);
    gathers.push_back(cp.AllGatherAsync(out.back(), counts(var.value), "gather tokens"));
  }
  for (const Pending& gather : gathers) gather.Wait();
  auto backward = [&stream = tape.stream(), counts, begin, tokens, &cp](std::span<const Tensor> dy,
                                                                        std::span<GradSlot> dx) {
    std::vector<Tensor> sums;
    std::vector<Pending> pending;
    for (const Tensor& gradient : dy) {
      CHECK(gradient.defined()) << "tokens that nobody reads";
      sums.push_back(gradient.Clone());
      pending.push_back(cp.ReduceScatterAsync(sums.back(), counts(gradient), Reduction::kSum,
                                              "sum token gradients"));
    }
    for (size_t i = 0; i < sums.size(); ++i) {
      pending[i].Wait();
      PassGradient(stream, dx[i], sums[i].Rows(begin, begin + tokens));
    }
  };
  return tape.Record(x, std::move(out),
                     {.name = "gather_tokens", .input_grad = std::move(backward)});
}

Var OwnTokens(Tape& tape, const Var& x, const ContextShard& shard, int64_t reach) {
  const int64_t halo = shard.Halo(reach), tokens = shard.tokens();
  auto backward = [&stream = tape.stream(), halo, tokens](std::span<const Tensor> dy,
                                                          std::span<GradSlot> dx) {
    const bool add = dx[0].accumulate();
    const Tensor to = dx[0].to(), own = to.Rows(halo, halo + tokens);
    if (add) return AccumulateInto(stream, own, dy[0]);
    to.Rows(0, halo).Zero();
    own.CopyFrom(dy[0]);
  };
  return tape.Record({x}, x.value.Rows(halo, halo + tokens),
                     {.name = "own_tokens", .input_grad = std::move(backward)});
}

}  // namespace lt2
