#include "kernels/exit_loss.h"

#include "kernels/elementwise.h"

namespace lt2 {
namespace {

std::vector<Tensor> EmptyLike(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> out;
  for (const Tensor& t : tensors) out.push_back(Tensor::Empty(t.shape(), t.dtype(), t.device()));
  return out;
}

}  // namespace

Cost CostOf(const ExitLossForwardArgs& args) {
  const double all = static_cast<double>(args.losses.size()) * args.targets_N.size();
  return {.flops = 16 * all, .bytes = 3.0 * all * args.losses[0].bytes() / args.targets_N.size()};
}

Cost CostOf(const ExitLossBackwardArgs& args) {
  const double all = static_cast<double>(args.losses.size()) * args.targets_N.size();
  return {.flops = 24 * all, .bytes = 6.0 * all * args.losses[0].bytes() / args.targets_N.size()};
}

Var ExitLoss(Tape& tape, const std::vector<Var>& gates, const std::vector<TokenLosses>& losses,
             const Tensor& targets_N) {
  const int64_t T = static_cast<int64_t>(losses.size()), N = targets_N.size();
  CHECK_GE(T, 1);
  CHECK_EQ(static_cast<int64_t>(gates.size()), T - 1);
  std::vector<Var> in = gates;
  for (const TokenLosses& loop : losses) in.push_back(loop.loss_N);
  for (const TokenLosses& loop : losses) in.push_back(loop.lse_N);
  std::vector<Tensor> values;
  for (const Var& var : in) {
    CHECK_EQ(var.value.size(), N);
    values.push_back(var.value);
  }
  const auto loss = values.begin() + (T - 1), lse = loss + T;
  const Tensor sums = Tensor::Empty({kExitProbabilitySums + T}, DType::kF64, tape.device());
  const ExitLossForwardArgs forward{.gates_N = {values.begin(), loss},
                                    .losses = {loss, lse},
                                    .lses = {lse, values.end()},
                                    .targets_N = targets_N,
                                    .sums = sums};
  ExitLossForward(tape.stream(), forward);
  auto backward = [&stream = tape.stream(), gates_N = forward.gates_N, losses = forward.losses,
                   lses = forward.lses,
                   targets_N](std::span<const Tensor> dy, std::span<GradSlot> dx) {
    const ExitLossBackwardArgs args{.dsums = dy[0],
                                    .gates_N = gates_N,
                                    .losses = losses,
                                    .lses = lses,
                                    .targets_N = targets_N,
                                    .dgates_N = EmptyLike(gates_N),
                                    .dlosses = EmptyLike(losses),
                                    .dlses = EmptyLike(lses)};
    ExitLossBackward(stream, args);
    size_t i = 0;
    for (const auto* gradients : {&args.dgates_N, &args.dlosses, &args.dlses}) {
      for (const Tensor& gradient : *gradients) PassGradient(stream, dx[i++], gradient);
    }
  };
  return tape.Record(in, {sums}, {.name = "exit_loss", .input_grad = std::move(backward)})[0];
}

}  // namespace lt2
