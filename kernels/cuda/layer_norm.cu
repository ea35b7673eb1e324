#include "kernels/cuda/row_pass.cuh"
#include "kernels/layer_norm.h"

namespace lt2::cuda {
namespace {

// A block's rows are one group (blockIdx.y) of many tokens: group g of token t is row t G + g.
struct Groups {
  int64_t tokens, count;

  __device__ int64_t Row(int64_t token) const { return token * count + blockIdx.y; }
};

template <class T, int n, int kPieces>
__global__ void __launch_bounds__(256)
    Forward(RowShare share, Groups groups, float eps, const T* x_RV, const float* w_C, T* y_RV,
            float* mean_R, float* rstd_R) {
  const RowPlace<n, kPieces> place(share);
  const int64_t first = blockIdx.x * share.rows_of_block();
  const int64_t row = groups.Row(place.RowFrom(first, groups.tokens)), at = row * place.width;
  const float* w_V = w_C + blockIdx.y * place.width;
  Packed<T, n> x[kPieces];
  place.LoadRow(x_RV + at, x);
  const float width = static_cast<float>(place.width);
  float sum = 0, squares = 0;
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
#pragma unroll
    for (int i = 0; i < n; ++i) sum += x[j][i];
  }
  const float mean = place.Sum(sum) / width;
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
    if (place.Column(j) >= place.width) continue;
#pragma unroll
    for (int i = 0; i < n; ++i) squares += (x[j][i] - mean) * (x[j][i] - mean);
  }
  const float rstd = rsqrtf(place.Sum(squares) / width + eps);
  if (first + place.group >= groups.tokens) return;
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
    const Piece<n> w = place.Weights(w_V, j);
    Piece<n> y;
#pragma unroll
    for (int i = 0; i < n; ++i) y[i] = (x[j][i] - mean) * (rstd * w[i]);
    place.StorePiece(y_RV + at, j, y);
  }
  if (place.lane == 0) mean_R[row] = mean, rstd_R[row] = rstd;
}

template <class T>
struct BackwardData {
  const T *dy_RV, *x_RV;
  const float *w_C, *mean_R, *rstd_R;
  T* dx_RV;  // may be null
  bool accumulate;
};

// Each block's part of dw goes to its group of a row of `partial`.
template <class T, int n, int kPieces>
__global__ void __launch_bounds__(256, kPieces <= 4 ? 2 : 1)
    Backward(RowShare share, Groups groups, BackwardData<T> data, float* partial) {
  const RowPlace<n, kPieces> place(share);
  const int64_t first_column = blockIdx.y * place.width;
  const float* w_V = data.w_C + first_column;
  const float width = static_cast<float>(place.width);
  Piece<n> dw[kPieces] = {};
  const int64_t step = gridDim.x * share.rows_of_block();
  for (int64_t base = blockIdx.x * share.rows_of_block(); base < groups.tokens; base += step) {
    const bool inside = base + place.group < groups.tokens;
    const int64_t row = groups.Row(place.RowFrom(base, groups.tokens)), at = row * place.width;
    Packed<T, n> dy[kPieces], x[kPieces];
    place.LoadRow(data.dy_RV + at, dy);
    place.LoadRow(data.x_RV + at, x);
    const float mean = data.mean_R[row], rstd = inside ? data.rstd_R[row] : 0;
    Piece<n> e[kPieces], normed[kPieces];
    float sum = 0, dot = 0;
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      const Piece<n> w = place.Weights(w_V, j);  // where there is no column dy is 0
#pragma unroll
      for (int i = 0; i < n; ++i) {
        normed[j][i] = (x[j][i] - mean) * rstd;
        dw[j][i] += dy[j][i] * normed[j][i];
        e[j][i] = dy[j][i] * w[i];
        sum += e[j][i];
        dot += e[j][i] * normed[j][i];
      }
    }
    if (data.dx_RV == nullptr) continue;
    const float mean_e = place.Sum(sum) / width, mean_dot = place.Sum(dot) / width;
    if (!inside) continue;
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
#pragma unroll
      for (int i = 0; i < n; ++i) e[j][i] = rstd * (e[j][i] - mean_e - normed[j][i] * mean_dot);
      place.StorePiece(data.dx_RV + at, j, e[j], data.accumulate);
    }
  }
  const int64_t columns = gridDim.y * place.width;
  place.StoreColumnSums(dw, partial + blockIdx.x * columns + first_column);
}

template <class T>
void RunForward(const Stream& stream, const LayerNormForwardArgs& args) {
  const int64_t columns = args.w.size(), tokens = args.x.size() / columns;
  if (tokens == 0) return;
  const int64_t groups = args.rstd.size() / tokens, width = columns / groups;
  DispatchPieces<T>(width, {args.x, args.w, args.y}, [&]<int n>() {
    DispatchRow<n>(width, [&]<int kPieces>(RowShare share) {
      const dim3 grid(Blocks(tokens, share.rows_of_block()), static_cast<unsigned>(groups));
      Forward<T, n, kPieces><<<grid, 256, 0, Handle(stream)>>>(
          share, Groups{tokens, groups}, static_cast<float>(args.eps), Data<T>(args.x),
          Data<float>(args.w), Data<T>(args.y), Data<float>(args.mean), Data<float>(args.rstd));
    });
  });
  CheckLaunch("layer_norm");
}

template <class T>
void RunBackward(const Stream& stream, const LayerNormBackwardArgs& args) {
  const int64_t columns = args.w.size(), tokens = args.x.size() / columns;
  if (tokens == 0) return;
  const int64_t groups = args.rstd.size() / tokens, width = columns / groups;
  const BackwardData<T> data{Data<T>(args.dy),       Data<T>(args.x),        Data<float>(args.w),
                             Data<float>(args.mean), Data<float>(args.rstd), DataOrNull<T>(args.dx),
                             args.accumulate_dx};
  PartialSums sums{.sums = 1, .columns = columns};
  DispatchPieces<T>(width, {args.dy, args.x, args.w, args.dx}, [&]<int n>() {
    DispatchRow<n, /*kSums=*/true>(width, [&]<int kPieces>(RowShare share) {
      sums.bands =
          std::clamp<int64_t>(SummingBlocks(tokens, share), 1, std::max<int64_t>(528 / groups, 1));
      float* partial = ScratchFor<float>(stream, sums.bands * columns);
      sums.data = partial;
      const dim3 grid(static_cast<unsigned>(sums.bands), static_cast<unsigned>(groups));
      Backward<T, n, kPieces>
          <<<grid, 256, 0, Handle(stream)>>>(share, Groups{tokens, groups}, data, partial);
    });
  });
  CheckLaunch("layer_norm backward");
  sums.Finish(stream, "layer_norm backward", 0, Data<float>(args.dw));
}

}  // namespace

void LayerNormForward(Stream& stream, const LayerNormForwardArgs& args) {
  DispatchType("layer_norm", args.x.dtype(), [&]<class T>() { RunForward<T>(stream, args); });
}

void LayerNormBackward(Stream& stream, const LayerNormBackwardArgs& args) {
  DispatchType("layer_norm", args.x.dtype(), [&]<class T>() { RunBackward<T>(stream, args); });
}

}  // namespace lt2::cuda
