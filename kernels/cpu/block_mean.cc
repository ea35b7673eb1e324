#include "kernels/block_mean.h"

namespace lt2::cpu {
namespace {

template <class T>
void Forward(const BlockMeanForwardArgs& args) {
  const int64_t row = args.x_NGD.size() / args.x_NGD.dim(0), block = args.block;
  const int64_t rows = args.mean_CGD.dim(0);
  const int32_t* cu = args.documents.cu_seqlens().data<int32_t>();
  const T* x = args.x_NGD.data<T>();
  T* mean = args.mean_CGD.data<T>();
  // Each document writes its blocks and the rows up to those of the next.
  const int64_t count = args.documents.count();
#pragma omp parallel for schedule(dynamic)
  for (int64_t d = 0; d < count; ++d) {
    const int64_t first = BlockRow(cu[d], block), blocks = (cu[d + 1] - cu[d]) / block;
    const int64_t end = d + 1 < count ? BlockRow(cu[d + 1], block) : rows;
    for (int64_t c = 0; c < blocks; ++c) {
      MeanOfRows(x + (cu[d] + c * block) * row, block, row, mean + (first + c) * row);
    }
    if (first + blocks < end) std::fill(mean + (first + blocks) * row, mean + end * row, T(0));
  }
}

template <class T>
void Backward(const BlockMeanBackwardArgs& args) {
  const int64_t N = args.dx_NGD.dim(0), row = args.dx_NGD.size() / N, block = args.block;
  const int32_t* cu = args.documents.cu_seqlens().data<int32_t>();
  const int32_t* positions = args.documents.positions().data<int32_t>();
  const T factor = T(1) / static_cast<T>(block);
  const int64_t count = args.documents.count();
#pragma omp parallel for schedule(dynamic)
  for (int64_t d = 0; d < count; ++d) {
    const int64_t members = (cu[d + 1] - cu[d]) / block * block;
    for (int64_t j = cu[d]; j < cu[d + 1]; ++j) {
      T* dx = args.dx_NGD.data<T>() + j * row;
      if (positions[j] >= members) {
        if (!args.accumulate_dx) std::fill(dx, dx + row, T(0));
        continue;
      }
      const T* dmean =
          args.dmean_CGD.data<T>() + (BlockRow(cu[d], block) + positions[j] / block) * row;
#pragma omp simd
      for (int64_t i = 0; i < row; ++i) {
        const T value = factor * dmean[i];
        dx[i] = args.accumulate_dx ? dx[i] + value : value;
      }
    }
  }
}

template <class T>
void Step(const BlockMeanStepArgs& args) {
  const int64_t B = args.x_BSC.dim(0), S = args.x_BSC.dim(1), R = args.mean_BRC.dim(1);
  const int64_t row = args.x_BSC.size() / (B * S);
  for (int64_t b = 0; b < B; ++b) {
    const int64_t length = args.lengths_B.data<int32_t>()[b];
    CHECK(length >= 0 && length <= S) << "length " << length << " of capacity " << S;
    if (length == 0 || length % args.block != 0) continue;
    T* mean = args.mean_BRC.data<T>() + (b * R + length / args.block - 1) * row;
    const T* x = args.x_BSC.data<T>() + (b * S + length - args.block) * row;
    MeanOfRows(x, args.block, row, mean);
  }
}

}  // namespace

void BlockMeanForward(Stream&, const BlockMeanForwardArgs& args) {
  DispatchFloat(args.x_NGD.dtype(), [&]<class T>() { Forward<T>(args); });
}

void BlockMeanBackward(Stream&, const BlockMeanBackwardArgs& args) {
  DispatchFloat(args.dx_NGD.dtype(), [&]<class T>() { Backward<T>(args); });
}

void BlockMeanStep(Stream&, const BlockMeanStepArgs& args) {
  DispatchFloat(args.x_BSC.dtype(), [&]<class T>() { Step<T>(args); });
}

}  // namespace lt2::cpu
