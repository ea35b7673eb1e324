#include "kernels/block_mean.h"

namespace lt2::reference {
namespace {

// visit(token, row) for the tokens that are in a block.
template <class Visit>
void ForEachMember(const Documents& documents, int64_t block, const Visit& visit) {
  const int32_t* cu = documents.cu_seqlens().data<int32_t>();
  for (int64_t d = 0; d < documents.count(); ++d) {
    const int64_t members = (cu[d + 1] - cu[d]) / block * block;
    for (int64_t j = 0; j < members; ++j) visit(cu[d] + j, BlockRow(cu[d], block) + j / block);
  }
}

}  // namespace

void BlockMeanForward(Stream&, const BlockMeanForwardArgs& args) {
  const int64_t row = args.x_NGD.size() / args.x_NGD.dim(0);
  args.mean_CGD.Zero();
  double* mean = args.mean_CGD.data<double>();
  ForEachMember(args.documents, args.block, [&](int64_t j, int64_t c) {
    for (int64_t i = 0; i < row; ++i) mean[c * row + i] += args.x_NGD.data<double>()[j * row + i];
  });
  for (double& x : args.mean_CGD.span<double>()) x /= static_cast<double>(args.block);
}

void BlockMeanBackward(Stream&, const BlockMeanBackwardArgs& args) {
  const int64_t row = args.dx_NGD.size() / args.dx_NGD.dim(0);
  if (!args.accumulate_dx) args.dx_NGD.Zero();
  ForEachMember(args.documents, args.block, [&](int64_t j, int64_t c) {
    for (int64_t i = 0; i < row; ++i) {
      args.dx_NGD.data<double>()[j * row + i] +=
          args.dmean_CGD.data<double>()[c * row + i] / static_cast<double>(args.block);
    }
  });
}

void BlockMeanStep(Stream&, const BlockMeanStepArgs& args) {
  const int64_t B = args.x_BSC.dim(0), S = args.x_BSC.dim(1), R = args.mean_BRC.dim(1);
  const int64_t row = args.x_BSC.size() / (B * S);
  for (int64_t b = 0; b < B; ++b) {
    const int64_t length = args.lengths_B.data<int32_t>()[b];
    if (length == 0 || length % args.block != 0) continue;
    double* mean = args.mean_BRC.data<double>() + (b * R + length / args.block - 1) * row;
    const double* x = args.x_BSC.data<double>() + (b * S + length - args.block) * row;
    for (int64_t i = 0; i < row; ++i) {
      mean[i] = 0;
      for (int64_t j = 0; j < args.block; ++j) mean[i] += x[j * row + i];
      mean[i] /= static_cast<double>(args.block);
    }
  }
}

}  // namespace lt2::reference
