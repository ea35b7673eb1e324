#include "kernels/head_loss.h"

#include <algorithm>

namespace lt2 {
namespace {

// 16 MiB of float32 logits, but rows enough that reading w for each chunk does not rule the time.
constexpr int64_t kChunkElements = int64_t{1} << 22;
constexpr int64_t kLeastRows = 128;

int64_t ChunkRows(int64_t rows, int64_t vocabulary, int64_t asked) {
  const int64_t chosen = asked > 0 ? asked : std::max(kChunkElements / vocabulary, kLeastRows);
  return std::clamp<int64_t>(chosen, 1, std::max<int64_t>(rows, 1));
}

double ProductFlops(const Tensor& x, const Tensor& w) { return 2.0 * x.size() * w.dim(0); }

}  // namespace

Cost CostOf(const HeadLossForwardArgs& args) {
  return {.flops = ProductFlops(args.x_ND, args.w_VD),
          .bytes = static_cast<double>(args.x_ND.bytes() + args.w_VD.bytes())};
}

Cost CostOf(const HeadLossBackwardArgs& args) {
  const int products = !args.logits_are_probabilities + args.dx_ND.defined() + args.dw_VD.defined();
  return {.flops = products * ProductFlops(args.x_ND, args.w_VD),
          .bytes = 2.0 * (args.x_ND.bytes() + args.w_VD.bytes())};
}

Var HeadLoss(Tape& tape, Var x_ND, Param& w_VD, const Tensor& targets_N,
             const HeadLossOptions& options) {
  const Tensor &x = x_ND.value, &w = w_VD.value;
  CHECK_EQ(x.shape().rank(), 2);
  CHECK_EQ(x.dim(1), w.dim(1));
  CHECK_EQ(targets_N.size(), x.dim(0));
  const int64_t N = x.dim(0), V = w.dim(0), chunk_rows = ChunkRows(N, V, options.chunk_rows);
  const bool keep = tape.recording() && N * V <= options.keep_at_most;
  const Shape logits_shape{keep ? N : chunk_rows, V};
  Tensor lse = Tensor::Empty({N}, x.dtype(), tape.device());
  Tensor sums = Tensor::Empty({kHeadLossSums}, DType::kF64, tape.device());
  Tensor probabilities;
  {
    Tensor logits = Tensor::Empty(logits_shape, x.dtype(), tape.device());
    Tensor loss = Tensor::Empty({N}, x.dtype(), tape.device());
    HeadLossForward(tape.stream(), {.x_ND = x,
                                    .w_VD = w,
                                    .targets_N = targets_N,
                                    .logits = logits,
                                    .loss_N = loss,
                                    .lse_N = lse,
                                    .sums = sums,
                                    .keep_probabilities = keep,
                                    .chunk_rows = chunk_rows});
    if (keep) probabilities = logits;
  }
  auto backward = [&stream = tape.stream(), x, &w_VD, targets_N, lse, probabilities, logits_shape,
                   chunk_rows](std::span<const Tensor> dy, std::span<GradSlot> dx) {
    const bool kept = probabilities.defined(), accumulate_dx = dx[0].accumulate();
    Tensor logits = kept ? probabilities : Tensor::Empty(logits_shape, x.dtype(), stream.device);
    HeadLossBackward(stream, {.dsums = dy[0],
                              .x_ND = x,
                              .w_VD = w_VD.value,
                              .targets_N = targets_N,
                              .lse_N = lse,
                              .logits = logits,
                              .logits_are_probabilities = kept,
                              .dx_ND = dx[0].to(),
                              .dw_VD = w_VD.main_grad,
                              .accumulate_dx = accumulate_dx,
                              .chunk_rows = chunk_rows});
  };
  return tape.Record({x_ND}, sums,
                     {.name = "head_loss", .params = {&w_VD}, .input_grad = std::move(backward)});
}

}  // namespace lt2
