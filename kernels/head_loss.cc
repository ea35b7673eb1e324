#include "kernels/head_loss.h"

#include <algorithm>
#include <utility>

#include "kernels/elementwise.h"

namespace lt2 {
namespace {

// 16 MiB of float32 logits, but rows enough that reading w for each chunk does not rule the time.
// A GPU's bfloat16: half a GiB, as each chunk also reads and writes the float32 gradient of w, in
// whole tiles of rows.
constexpr int64_t kChunkElements = int64_t{1} << 22, kChunkElementsBF16 = int64_t{1} << 28;
constexpr int64_t kLeastRows = 128, kTileRows = 256;

int64_t ChunkRows(DType dtype, int64_t rows, int64_t vocabulary, int64_t asked) {
  const int64_t elements = dtype == DType::kBF16 ? kChunkElementsBF16 : kChunkElements;
  int64_t chosen = asked > 0 ? asked : std::max(elements / vocabulary, kLeastRows);
  const bool round = asked == 0 && dtype == DType::kBF16 && chosen > kTileRows;
  if (round) chosen -= chosen % kTileRows;
  return std::clamp<int64_t>(chosen, 1, std::max<int64_t>(rows, 1));
}

double ProductFlops(const Tensor& x, const Tensor& w) { return 2.0 * x.size() * w.dim(0); }

}  // namespace

Cost CostOf(const HeadLossForwardArgs& args) {
  const int products = 1 + args.dx_ND.defined() + args.dw_VD.defined();
  const int passes = args.dsums.defined() ? 2 : 1;
  return {.flops = products * ProductFlops(args.x_ND, args.w_VD),
          .bytes = static_cast<double>(passes * (args.x_ND.bytes() + args.w_VD.bytes()))};
}

Cost CostOf(const HeadLossBackwardArgs& args) {
  const int products = !args.logits_are_probabilities + args.dx_ND.defined() + args.dw_VD.defined();
  return {.flops = products * ProductFlops(args.x_ND, args.w_VD),
          .bytes = 2.0 * (args.x_ND.bytes() + args.w_VD.bytes())};
}

namespace {

// What forward leaves for backward, and its results.
struct Visit {
  Saved x;
  Tensor targets_N, loss_N, lse_N, sums;
  Tensor probabilities = {};  // undefined if logits are computed again
  Tensor dx_ND = {};          // where forward made the gradients, and it is wanted
  Shape logits_shape;
  int64_t chunk_rows = 0;
};

Visit RunForward(Tape& tape, const Var& x_ND, Param& w_VD, const Tensor& targets_N,
                 const HeadLossOptions& options) {
  const Tensor &x = x_ND.value, &w = w_VD.value;
  CHECK_EQ(x.shape().rank(), 2);
  CHECK_EQ(x.dim(1), w.dim(1));
  CHECK_EQ(targets_N.size(), x.dim(0));
  const int64_t N = x.dim(0), V = w.dim(0), vocabulary = w_VD.spec.shape[0];
  const int ranks = options.link == nullptr ? 1 : options.link->size();
  RankLink* const link = ranks == 1 ? nullptr : options.link;
  if (link == nullptr)
    CHECK_EQ(V, vocabulary) << w_VD.spec.name << " is held in part, without a link";
  const int64_t widest = (vocabulary + ranks - 1) / ranks;  // all ranks take the same chunks
  const int64_t chunk_rows = ChunkRows(x.dtype(), N, widest, options.chunk_rows);
  const bool at_once = tape.recording() && options.dsums.defined();
  const bool keep = tape.recording() && !at_once && N * widest <= options.keep_at_most;
  Visit visit{.x = tape.Save(x_ND),
              .targets_N = targets_N,
              .loss_N = Tensor::Empty({N}, AccumulatorOf(x.dtype()), tape.device()),
              .lse_N = Tensor::Empty({N}, AccumulatorOf(x.dtype()), tape.device()),
              .sums = Tensor::Empty({kHeadLossSums}, DType::kF64, tape.device()),
              .logits_shape = {keep ? N : chunk_rows, V},
              .chunk_rows = chunk_rows};
  if (at_once && x_ND.needs_grad()) {
    visit.dx_ND = Tensor::Empty(x.shape(), x.dtype(), tape.device());
  }
  if (at_once) w_VD.Need();
  const Tensor logits = Tensor::Empty(visit.logits_shape, x.dtype(), tape.device());
  Tensor stats;
  if (link != nullptr) {
    stats = Tensor::Empty({kHeadLossStats, chunk_rows}, AccumulatorOf(x.dtype()), tape.device());
  }
  HeadLossForward(tape.stream(), {.x_ND = x,
                                  .w_VD = w,
                                  .targets_N = targets_N,
                                  .logits = logits,
                                  .loss_N = visit.loss_N,
                                  .lse_N = visit.lse_N,
                                  .sums = visit.sums,
                                  .keep_probabilities = keep,
                                  .dsums = at_once ? options.dsums : Tensor(),
                                  .dx_ND = visit.dx_ND,
                                  .dw_VD = at_once ? w_VD.main_grad : Tensor(),
                                  .chunk_rows = chunk_rows,
                                  .first_row = w_VD.held.begin[0],
                                  .vocabulary = vocabulary,
                                  .link = link,
                                  .stats = stats});
  if (keep) visit.probabilities = logits;
  return visit;
}

// `args` has the gradients of the results; the rest is filled in here.
void RunBackward(Stream& stream, const Visit& visit, const Param& w_VD, HeadLossBackwardArgs args,
                 GradSlot& dx) {
  const bool kept = visit.probabilities.defined();
  args.x_ND = visit.x.get();
  args.w_VD = w_VD.value;
  args.targets_N = visit.targets_N;
  args.lse_N = visit.lse_N;
  args.logits = kept ? visit.probabilities
                     : Tensor::Empty(visit.logits_shape, args.x_ND.dtype(), stream.device);
  args.logits_are_probabilities = kept;
  args.accumulate_dx = dx.accumulate();
  args.dx_ND = dx.to();
  args.dw_VD = w_VD.main_grad;
  args.chunk_rows = visit.chunk_rows;
  args.first_row = w_VD.held.begin[0];
  HeadLossBackward(stream, args);
}

}  // namespace

Var HeadLoss(Tape& tape, Var x_ND, Param& w_VD, const Tensor& targets_N,
             const HeadLossOptions& options) {
  Visit visit = RunForward(tape, x_ND, w_VD, targets_N, options);
  visit.loss_N = {};
  const Tensor sums = std::exchange(visit.sums, {});
  if (options.dsums.defined()) {
    auto hand_over = [&stream = tape.stream(), dsums = options.dsums, dx_ND = visit.dx_ND](
                         std::span<const Tensor> dy, std::span<GradSlot> dx) {
      CHECK(dy[0].SharesStorageWith(dsums)) << "the sums have another gradient than was said";
      PassGradient(stream, dx[0], dx_ND);
    };
    return tape.Record(
        {x_ND}, sums, {.name = "head_loss", .params = {&w_VD}, .input_grad = std::move(hand_over)});
  }
  auto backward = [&stream = tape.stream(), visit, &w_VD](std::span<const Tensor> dy,
                                                          std::span<GradSlot> dx) {
    RunBackward(stream, visit, w_VD, {.dsums = dy[0]}, dx[0]);
  };
  return tape.Record({x_ND}, sums,
                     {.name = "head_loss", .params = {&w_VD}, .input_grad = std::move(backward)});
}

TokenLosses HeadLossPerToken(Tape& tape, Var x_ND, Param& w_VD, const Tensor& targets_N,
                             const HeadLossOptions& options) {
  const Visit visit = RunForward(tape, x_ND, w_VD, targets_N, options);
  auto backward = [&stream = tape.stream(), visit, &w_VD](std::span<const Tensor> dy,
                                                          std::span<GradSlot> dx) {
    RunBackward(stream, visit, w_VD, {.dloss_N = dy[0], .dlse_N = dy[1]}, dx[0]);
  };
  const std::vector<Var> out = tape.Record(
      std::span(&x_ND, 1), {visit.loss_N, visit.lse_N},
      {.name = "head_loss_per_token", .params = {&w_VD}, .input_grad = std::move(backward)});
  return {.loss_N = out[0], .lse_N = out[1]};
}

}  // namespace lt2
