#include "kernels/cuda/gate.cuh"
#include "kernels/cuda/row_pass.cuh"
#include "kernels/gated_rms_norm.h"

namespace lt2::cuda {
namespace {

template <class T>
struct ForwardData {
  const T *x_RV, *gate_RV;
  const float* w_V;
  T* y_RV;
  float* rstd_R;
  float eps;
};

template <class Gate, class T, int n, int kPieces>
__global__ void __launch_bounds__(256) Forward(RowShare share, int64_t rows, ForwardData<T> data) {
  const RowPlace<n, kPieces> place(share);
  const int64_t first = blockIdx.x * share.rows_of_block();
  const int64_t row = place.RowFrom(first, rows), at = row * place.width;
  Packed<T, n> x[kPieces], gate[kPieces];
  place.LoadRow(data.x_RV + at, x);
  place.LoadRow(data.gate_RV + at, gate);
  float squares = 0;
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
#pragma unroll
    for (int i = 0; i < n; ++i) squares += x[j][i] * x[j][i];
  }
  const float rstd = rsqrtf(place.Sum(squares) / static_cast<float>(place.width) + data.eps);
  if (first + place.group >= rows) return;
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
    const Piece<n> w = place.Weights(data.w_V, j);
    Piece<n> y;
#pragma unroll
    for (int i = 0; i < n; ++i) y[i] = x[j][i] * (rstd * w[i]) * Gate::Value(gate[j][i]);
    place.StorePiece(data.y_RV + at, j, y);
  }
  if (place.lane == 0) data.rstd_R[row] = rstd;
}

template <class T>
struct BackwardData {
  const T *dy_RV, *x_RV, *gate_RV;
  const float *w_V, *rstd_R;
  T *dx_RV, *dgate_RV;  // null where not wanted
  bool accumulate_dx, accumulate_dgate;
};

// Each block's part of dw goes to its row of `partial`.
template <class Gate, class T, int n, int kPieces>
__global__ void __launch_bounds__(256, kPieces <= 3 ? 2 : 1)
    Backward(RowShare share, int64_t rows, BackwardData<T> data, float* partial) {
  const RowPlace<n, kPieces> place(share);
  Piece<n> dw[kPieces] = {};
  const int64_t step = gridDim.x * share.rows_of_block();
  for (int64_t base = blockIdx.x * share.rows_of_block(); base < rows; base += step) {
    const bool inside = base + place.group < rows;
    const int64_t row = place.RowFrom(base, rows), at = row * place.width;
    Packed<T, n> dy[kPieces], x[kPieces], gate[kPieces];
    place.LoadRow(data.dy_RV + at, dy);
    place.LoadRow(data.gate_RV + at, gate);
    place.LoadRow(data.x_RV + at, x);
    const float rstd = inside ? data.rstd_R[row] : 0;
    float product = 0;
    Piece<n> e[kPieces];  // the gradient of x rstd
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      const Piece<n> w = place.Weights(data.w_V, j);
      Piece<n> dgate;
#pragma unroll
      for (int i = 0; i < n; ++i) {
        float value, slope;
        Gate::ValueAndSlope(gate[j][i], value, slope);
        const float normed = x[j][i] * rstd, gated = dy[j][i] * value;
        dgate[i] = dy[j][i] * normed * w[i] * slope;
        dw[j][i] += normed * gated;
        e[j][i] = gated * w[i];
        product += e[j][i] * x[j][i];
      }
      if (inside && data.dgate_RV != nullptr) {
        place.StorePiece(data.dgate_RV + at, j, dgate, data.accumulate_dgate);
      }
    }
    const float pull = place.Sum(product) * rstd * rstd * rstd / static_cast<float>(place.width);
    if (!inside || data.dx_RV == nullptr) continue;
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
#pragma unroll
      for (int i = 0; i < n; ++i) e[j][i] = e[j][i] * rstd - pull * x[j][i];
      place.StorePiece(data.dx_RV + at, j, e[j], data.accumulate_dx);
    }
  }
  place.StoreColumnSums(dw, partial + blockIdx.x * place.width);
}

template <class T, class Gate>
void RunForward(const Stream& stream, const GatedRmsNormForwardArgs& args) {
  const int64_t width = args.w.size(), rows = args.x.size() / width;
  if (rows == 0) return;
  const ForwardData<T> data{Data<T>(args.x), Data<T>(args.gate),     Data<float>(args.w),
                            Data<T>(args.y), Data<float>(args.rstd), static_cast<float>(args.eps)};
  DispatchPieces<T>(width, {args.x, args.gate, args.w, args.y}, [&]<int n>() {
    DispatchRow<n>(width, [&]<int kPieces>(RowShare share) {
      Forward<Gate, T, n, kPieces>
          <<<Blocks(rows, share.rows_of_block()), 256, 0, Handle(stream)>>>(share, rows, data);
    });
  });
  CheckLaunch("gated_rms_norm");
}

template <class T, class Gate>
void RunBackward(const Stream& stream, const GatedRmsNormBackwardArgs& args) {
  const int64_t width = args.w.size(), rows = args.x.size() / width;
  if (rows == 0) return;
  const BackwardData<T> data{
      Data<T>(args.dy),          Data<T>(args.x),        Data<T>(args.gate),
      Data<float>(args.w),       Data<float>(args.rstd), DataOrNull<T>(args.dx),
      DataOrNull<T>(args.dgate), args.accumulate_dx,     args.accumulate_dgate};
  PartialSums sums{.sums = 1, .columns = width};
  DispatchPieces<T>(width, {args.dy, args.x, args.gate, args.w, args.dx, args.dgate}, [&]<int n>() {
    DispatchRow<n, /*kSums=*/true>(width, [&]<int kPieces>(RowShare share) {
      sums.bands = SummingBlocks(rows, share);
      float* partial = ScratchFor<float>(stream, sums.bands * width);
      sums.data = partial;
      Backward<Gate, T, n, kPieces>
          <<<sums.bands, 256, 0, Handle(stream)>>>(share, rows, data, partial);
    });
  });
  CheckLaunch("gated_rms_norm backward");
  sums.Finish(stream, "gated_rms_norm backward", 0, Data<float>(args.dw));
}

}  // namespace

void GatedRmsNormForward(Stream& stream, const GatedRmsNormForwardArgs& args) {
  DispatchType("gated_rms_norm", args.x.dtype(), [&]<class T>() {
    DispatchGate<T>(args.kind, [&]<class Gate>() { RunForward<T, Gate>(stream, args); });
  });
}

void GatedRmsNormBackward(Stream& stream, const GatedRmsNormBackwardArgs& args) {
  DispatchType("gated_rms_norm", args.x.dtype(), [&]<class T>() {
    DispatchGate<T>(args.kind, [&]<class Gate>() { RunBackward<T, Gate>(stream, args); });
  });
}

}  // namespace lt2::cuda
