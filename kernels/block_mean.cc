#include "kernels/block_mean.h"

namespace lt2 {

Cost CostOf(const BlockMeanForwardArgs& args) {
  return {.flops = static_cast<double>(args.x_NGD.size()),
          .bytes = static_cast<double>(args.x_NGD.bytes() + args.mean_CGD.bytes())};
}

Cost CostOf(const BlockMeanBackwardArgs& args) {
  return {.flops = static_cast<double>(args.dx_NGD.size()),
          .bytes = (args.accumulate_dx ? 2.0 : 1.0) * static_cast<double>(args.dx_NGD.bytes()) +
                   static_cast<double>(args.dmean_CGD.bytes())};
}

// On average a block ends every `block` steps.
Cost CostOf(const BlockMeanStepArgs& args) {
  const double row = static_cast<double>(args.x_BSC.size() / args.x_BSC.dim(1));
  return {.flops = row, .bytes = row * static_cast<double>(SizeOf(args.x_BSC.dtype()))};
}

Var BlockMean(Tape& tape, Var x_NGD, int64_t block, const Documents& documents) {
  CHECK_EQ(x_NGD.shape().rank(), 3);
  CHECK_EQ(x_NGD.shape()[0], documents.tokens());
  CHECK_GE(block, 1);
  const Tensor& x = x_NGD.value;
  Tensor mean =
      Tensor::Empty({BlockRows(x.dim(0), block), x.dim(1), x.dim(2)}, x.dtype(), tape.device());
  BlockMeanForward(tape.stream(),
                   {.x_NGD = x, .mean_CGD = mean, .block = block, .documents = documents});
  auto backward = [&stream = tape.stream(), block, documents](std::span<const Tensor> dy,
                                                              std::span<GradSlot> dx) {
    if (!dx[0].wanted()) return;
    const bool accumulate = dx[0].accumulate();
    BlockMeanBackward(stream, {.dmean_CGD = dy[0],
                               .dx_NGD = dx[0].to(),
                               .accumulate_dx = accumulate,
                               .block = block,
                               .documents = documents});
  };
  return tape.Record({x_NGD}, mean, {.name = "block_mean", .input_grad = std::move(backward)});
}

}  // namespace lt2
