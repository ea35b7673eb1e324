#include "parallel/token_passing.h"

#include "kernels/elementwise.h"

namespace lt2 {
namespace {

Tensor EmptyRows(const Tensor& like, int64_t rows) {
  Shape shape = like.shape();
  shape[0] = rows;
  return Tensor::Empty(shape, like.dtype(), like.device());
}

// The rows that were passed on and the own ones behind them.
Tensor Join(const Tensor& left, const Tensor& own) {
  if (!left.defined()) return own;
  const int64_t halo = left.dim(0), rows = halo + own.dim(0);
  const Tensor joined = EmptyRows(own, rows);
  joined.Rows(0, halo).CopyFrom(left);
  joined.Rows(halo, rows).CopyFrom(own);
  return joined;
}

}  // namespace

std::vector<Var> PassContext(Tape& tape, std::span<const Var> x, ContextShard& shard,
                             int64_t reach) {
  Communicator& cp = shard.cp();
  const int rank = cp.rank();
  const int64_t halo = shard.Halo(reach), all = halo + shard.tokens();
  const int64_t next = rank + 1 < cp.size() ? shard.Halo(reach, rank + 1) : 0;  // of the last rows

  // Only what came survives recompute: the own rows are made again there.
  const std::vector<Tensor> left = tape.Kept([&] {
    std::vector<Tensor> came(x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      if (halo > 0) {
        came[i] = EmptyRows(x[i].value, halo);
        cp.Receive(came[i], rank - 1, "tokens to the right");
      }
      if (next == 0) continue;
      cp.Send(Join(came[i], x[i].value).Rows(all - next, all), rank + 1, "tokens to the right");
    }
    return came;
  });
  std::vector<Tensor> out;
  for (size_t i = 0; i < x.size(); ++i) out.push_back(Join(left[i], x[i].value));

  auto backward = [&stream = tape.stream(), &cp, rank, halo, all, next](std::span<const Tensor> dy,
                                                                        std::span<GradSlot> dx) {
    for (size_t i = 0; i < dy.size(); ++i) {
      CHECK(dy[i].defined()) << "tokens that nobody reads";
      const Tensor sum = dy[i].Clone();
      if (next > 0) {
        const Tensor from_right = EmptyRows(sum, next);
        cp.Receive(from_right, rank + 1, "gradients to the left");
        AccumulateInto(stream, sum.Rows(all - next, all), from_right);
      }
      if (halo > 0) cp.Send(sum.Rows(0, halo), rank - 1, "gradients to the left");
      PassGradient(stream, dx[i], sum.Rows(halo, all));
    }
  };
  return tape.Record(x, std::move(out),
                     {.name = "pass_context", .input_grad = std::move(backward)});
}

}  // namespace lt2
