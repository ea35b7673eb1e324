#include "kernels/select_blocks.h"

#include "kernels/block_mean.h"
#include "kernels/choose_blocks.h"

namespace lt2::reference {

void SelectBlocksForward(Stream&, const SelectBlocksForwardArgs& args) {
  const int64_t N = args.q_NHD.dim(0), H = args.q_NHD.dim(1), D = args.q_NHD.dim(2);
  const int64_t G = args.k_CGD.dim(1), S = args.options.selected;
  for (int64_t i = 0; i < N; ++i) {
    const int64_t token = args.documents.query_begin() + i;
    const int64_t position = args.documents.positions().data<int32_t>()[token];
    const int64_t row = BlockRow(token - position, args.options.block);
    for (int64_t g = 0; g < G; ++g) {
      const BlockQuery<double> query{.q = args.q_NHD.data<double>() + (i * H + g * (H / G)) * D,
                                     .k = args.k_CGD.data<double>() + (row * G + g) * D,
                                     .heads = H / G,
                                     .D = D,
                                     .stride = G * D,
                                     .position = position};
      ChooseBlocks(query, args.options, args.blocks_NGS.data<int32_t>() + (i * G + g) * S);
    }
  }
}

void SelectBlocksStep(Stream&, const SelectBlocksStepArgs& args) {
  const int64_t B = args.q_BHD.dim(0), H = args.q_BHD.dim(1), D = args.q_BHD.dim(2);
  const int64_t R = args.k_BRGD.dim(1), G = args.k_BRGD.dim(2), S = args.options.selected;
  for (int64_t b = 0; b < B; ++b) {
    for (int64_t g = 0; g < G; ++g) {
      const BlockQuery<double> query{.q = args.q_BHD.data<double>() + (b * H + g * (H / G)) * D,
                                     .k = args.k_BRGD.data<double>() + (b * R * G + g) * D,
                                     .heads = H / G,
                                     .D = D,
                                     .stride = G * D,
                                     .position = args.lengths_B.data<int32_t>()[b] - 1};
      ChooseBlocks(query, args.options, args.blocks_BGS.data<int32_t>() + (b * G + g) * S);
    }
  }
}

}  // namespace lt2::reference
