#include "kernels/select_blocks.h"

#include "kernels/block_mean.h"
#include "kernels/compressed_attention.h"

namespace lt2 {

Cost CostOf(const SelectBlocksForwardArgs& args) {
  const double pairs =
      CompressedPairs(args.documents, args.options.block) * static_cast<double>(args.q_NHD.dim(1));
  return {.flops = pairs * (2 * static_cast<double>(args.q_NHD.dim(2)) + 4),
          .bytes = static_cast<double>(args.q_NHD.bytes() + args.k_CGD.bytes() +
                                       args.blocks_NGS.bytes())};
}

// Full caches: lengths are the device's.
Cost CostOf(const SelectBlocksStepArgs& args) {
  const double pairs = static_cast<double>(args.q_BHD.dim(0) * args.q_BHD.dim(1)) *
                       static_cast<double>(args.k_BRGD.dim(1));
  return {.flops = pairs * (2 * static_cast<double>(args.q_BHD.dim(2)) + 4),
          .bytes = static_cast<double>(args.q_BHD.bytes() + args.k_BRGD.bytes() +
                                       args.blocks_BGS.bytes())};
}

Tensor SelectBlocks(Tape& tape, const Tensor& q_NHD, const Tensor& k_CGD,
                    const SelectBlocksOptions& options, const Documents& documents) {
  CHECK_EQ(q_NHD.shape().rank(), 3);
  CHECK_EQ(k_CGD.shape().rank(), 3);
  CHECK_EQ(q_NHD.dim(0), documents.query_tokens());
  CHECK_EQ(k_CGD.dim(0), BlockRows(documents.tokens(), options.block));
  CHECK_EQ(q_NHD.dim(2), k_CGD.dim(2));
  CHECK_EQ(q_NHD.dim(1) % k_CGD.dim(1), 0) << "query heads over key/value heads";
  CHECK_GE(options.selected, 3) << "the first, the previous and the current block";
  return tape.Kept([&] {
    const Tensor blocks =
        Tensor::Empty({q_NHD.dim(0), k_CGD.dim(1), options.selected}, DType::kI32, tape.device());
    SelectBlocksForward(tape.stream(), {.q_NHD = q_NHD,
                                        .k_CGD = k_CGD,
                                        .blocks_NGS = blocks,
                                        .options = options,
                                        .documents = documents});
    return std::vector<Tensor>{blocks};
  })[0];
}

}  // namespace lt2
