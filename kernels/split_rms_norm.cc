#include "kernels/split_rms_norm.h"

#include "kernels/rms_norm.h"

namespace lt2 {

Cost CostOf(const SplitRmsNormSumsArgs& args) {
  const int operands = args.dy.defined() ? 2 : 1;
  return {.flops = (operands + 1.0) * args.x.size(), .bytes = 1.0 * operands * args.x.bytes()};
}

Cost CostOf(const SplitRmsNormForwardArgs& args) {
  return {.flops = 2.0 * args.x.size(), .bytes = 2.0 * args.x.bytes()};
}

Cost CostOf(const SplitRmsNormBackwardArgs& args) {
  return {.flops = 6.0 * args.x.size(), .bytes = (3.0 + args.accumulate_dx) * args.x.bytes()};
}

namespace {

// Over this rank's run of `ranks` neighbours: one row a run, of which a rank fills its own.
void SumOverRun(const Tensor& x, RankLink& link, int ranks) {
  if (ranks == link.size()) return link.Sum(x);
  const Tensor runs = Tensor::Zeros({link.size() / ranks, x.size()}, x.dtype(), x.device());
  const Tensor own = runs.Rows(link.rank() / ranks, link.rank() / ranks + 1);
  own.CopyFrom(x);
  link.Sum(runs);
  x.CopyFrom(own);
}

}  // namespace

Var SplitRmsNorm(Tape& tape, Var x, Param& w, double eps, RankLink& link, int ranks) {
  if (ranks == 0) ranks = link.size();
  if (ranks == 1) return RmsNorm(tape, x, w, eps);
  CHECK_EQ(link.size() % ranks, 0) << w.spec.name;
  CHECK_EQ(x.shape().back(), w.value.size()) << w.spec.name;
  Stream& stream = tape.stream();
  const int64_t channels = w.value.size() * ranks;
  const auto sums = [&stream, &w, &link, ranks](const Tensor& x_NC, const Tensor& dy_NC) {
    const Tensor sums_N =
        Tensor::Empty({x_NC.shape().rows()}, AccumulatorOf(x_NC.dtype()), x_NC.device());
    SplitRmsNormSums(stream, {.x = x_NC, .dy = dy_NC, .w = w.value, .sums_N = sums_N});
    SumOverRun(sums_N, link, ranks);
    return sums_N;
  };
  const Tensor squares_N =
      tape.Kept([&]() -> std::vector<Tensor> { return {sums(x.value, {})}; })[0];
  const Tensor rstd_N = Tensor::Empty(squares_N.shape(), squares_N.dtype(), tape.device());
  const Var y = tape.Make([&stream, &w, x = Tape::Save(x), squares_N, rstd_N, channels, eps] {
    const Tensor from = x.get(), to = Tensor::Empty(from.shape(), from.dtype(), from.device());
    SplitRmsNormForward(stream, {.x = from,
                                 .w = w.value,
                                 .squares_N = squares_N,
                                 .y = to,
                                 .rstd_N = rstd_N,
                                 .channels = channels,
                                 .eps = eps});
    return to;
  });
  return tape.Record({x}, y,
                     {.name = "split_rms_norm",
                      .params = {&w},
                      .input_grad = [&stream, &w, x = Tape::Save(x), rstd_N, channels, sums](
                                        std::span<const Tensor> dy, std::span<GradSlot> dx) {
                        const Tensor x_NC = x.get();
                        const bool accumulate = dx[0].accumulate();
                        SplitRmsNormBackward(stream, {.dy = dy[0],
                                                      .x = x_NC,
                                                      .w = w.value,
                                                      .rstd_N = rstd_N,
                                                      .products_N = sums(x_NC, dy[0]),
                                                      .dx = dx[0].to(),
                                                      .dw = w.main_grad,
                                                      .channels = channels,
                                                      .accumulate_dx = accumulate});
                      }});
}

}  // namespace lt2
