#include "kernels/cuda/rms_norm.cuh"
#include "kernels/rms_norm.h"

namespace lt2::cuda {
namespace {

template <class T>
struct BackwardData {
  const T *dy_ND, *x_ND, *through_ND;  // through may be null
  const float *w_D, *rstd_N;
  T* dx_ND;  // may be null
  bool accumulate;
};

// Each block's part of dw goes to its group of a row of `partial`.
template <class T, int n, int kPieces>
__global__ void __launch_bounds__(256, kPieces <= 4 ? 2 : 1)
    Backward(RowShare share, NormGroups groups, BackwardData<T> data, float* partial) {
  const RowPlace<n, kPieces> place(share);
  const int first_column = static_cast<int>(blockIdx.y) * place.width;
  Piece<n> dw[kPieces] = {};
  const int64_t step = gridDim.x * share.rows_of_block();
  for (int64_t base = blockIdx.x * share.rows_of_block(); base < groups.tokens; base += step) {
    const int64_t token = base + place.group;
    const bool inside = token < groups.tokens;
    const int64_t row = groups.Row(token), at = row * place.width;
    Piece<n> dy[kPieces], x[kPieces];
    place.LoadRow(data.dy_ND + at, inside, dy);
    place.LoadRow(data.x_ND + at, inside, x);
    const float rstd = inside ? data.rstd_N[row] : 0;
    float product = 0;
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      if (place.Column(j) >= place.width) continue;
      const Piece<n> w = Load<n>(data.w_D + first_column + place.Column(j));
#pragma unroll
      for (int i = 0; i < n; ++i) {
        const float moved = dy[j][i] * x[j][i];
        dw[j][i] += moved * rstd;
        product += moved * w[i];
        dy[j][i] *= w[i] * rstd;
      }
    }
    if (data.dx_ND == nullptr) continue;
    const float pull = place.Sum(product) * rstd * rstd * rstd / static_cast<float>(place.width);
    if (!inside) continue;
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      if (place.Column(j) >= place.width) continue;
      Piece<n> through = {};
      if (data.through_ND != nullptr) through = Load<n>(data.through_ND + at + place.Column(j));
#pragma unroll
      for (int i = 0; i < n; ++i) dy[j][i] += through[i] - pull * x[j][i];
    }
    place.StoreRow(data.dx_ND + at, dy, data.accumulate);
  }
  const int64_t columns = gridDim.y * place.width;
  place.StoreColumnSums(dw, partial + blockIdx.x * columns + first_column);
}

template <class T>
void RunBackward(const Stream& stream, const RmsNormBackwardArgs& args) {
  const NormGroups groups(args.w, args.rstd);
  if (groups.tokens == 0) return;
  const int64_t columns = args.w.size();
  const BackwardData<T> data{
      Data<T>(args.dy),    Data<T>(args.x),        DataOrNull<T>(args.through),
      Data<float>(args.w), Data<float>(args.rstd), DataOrNull<T>(args.dx),
      args.accumulate_dx};
  PartialSums sums{.sums = 1, .columns = columns};
  const std::initializer_list<Tensor> moved = {args.dy, args.x, args.through, args.w, args.dx};
  DispatchPieces<T>(groups.width, moved, [&]<int n>() {
    DispatchRow<n>(groups.width, [&]<int kPieces>(RowShare share) {
      sums.bands = std::clamp<int64_t>(SummingBlocks(groups.tokens, share), 1,
                                       std::max<int64_t>(528 / groups.count, 1));
      float* partial = ScratchFor<float>(stream, sums.bands * columns);
      sums.data = partial;
      const dim3 grid(static_cast<unsigned>(sums.bands), static_cast<unsigned>(groups.count));
      Backward<T, n, kPieces><<<grid, 256, 0, Handle(stream)>>>(share, groups, data, partial);
    });
  });
  CheckLaunch("rms_norm backward");
  sums.Finish(stream, "rms_norm backward", 0, Data<float>(args.dw));
}

}  // namespace

void RmsNormForward(Stream& stream, const RmsNormForwardArgs& args) {
  DispatchType("rms_norm", args.x.dtype(), [&]<class T>() {
    RunRmsForward<T>(stream, "rms_norm", args.x, {}, args.w, {}, args.y, args.rstd, args.eps);
  });
}

void RmsNormBackward(Stream& stream, const RmsNormBackwardArgs& args) {
  DispatchType("rms_norm", args.x.dtype(), [&]<class T>() { RunBackward<T>(stream, args); });
}

}  // namespace lt2::cuda
