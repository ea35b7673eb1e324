#include "kernels/cuda/row_pass.cuh"
#include "kernels/l2_norm.h"

namespace lt2::cuda {
namespace {

template <class T, int n, int kPieces>
__global__ void __launch_bounds__(256)
    Forward(RowShare share, int64_t rows, float eps, const T* x_RD, T* y_RD, float* rho_R) {
  const RowPlace<n, kPieces> place(share);
  const int64_t first = blockIdx.x * share.rows_of_block();
  const int64_t row = place.RowFrom(first, rows), at = row * place.width;
  Packed<T, n> x[kPieces];
  place.LoadRow(x_RD + at, x);
  float squares = 0;
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
#pragma unroll
    for (int i = 0; i < n; ++i) squares += x[j][i] * x[j][i];
  }
  const float rho = rsqrtf(place.Sum(squares) + eps);
  if (first + place.group >= rows) return;
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
    Piece<n> y;
#pragma unroll
    for (int i = 0; i < n; ++i) y[i] = x[j][i] * rho;
    place.StorePiece(y_RD + at, j, y);
  }
  if (place.lane == 0) rho_R[row] = rho;
}

template <class T, int n, int kPieces>
__global__ void __launch_bounds__(256)
    Backward(RowShare share, int64_t rows, const T* dy_RD, const T* y_RD, const float* rho_R,
             T* dx_RD, bool accumulate) {
  const RowPlace<n, kPieces> place(share);
  const int64_t first = blockIdx.x * share.rows_of_block();
  const int64_t row = place.RowFrom(first, rows), at = row * place.width;
  Packed<T, n> dy[kPieces], y[kPieces];
  place.LoadRow(dy_RD + at, dy);
  place.LoadRow(y_RD + at, y);
  const float rho = rho_R[row];
  float product = 0;
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
#pragma unroll
    for (int i = 0; i < n; ++i) product += dy[j][i] * y[j][i];
  }
  const float dot = place.Sum(product);
  if (first + place.group >= rows) return;
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
    Piece<n> dx;
#pragma unroll
    for (int i = 0; i < n; ++i) dx[i] = rho * (dy[j][i] - y[j][i] * dot);
    place.StorePiece(dx_RD + at, j, dx, accumulate);
  }
}

template <class T>
void RunForward(const Stream& stream, const L2NormForwardArgs& args) {
  const int64_t rows = args.rho.size();
  if (rows == 0) return;
  const int64_t width = args.x.size() / rows;
  DispatchPieces<T>(width, {args.x, args.y}, [&]<int n>() {
    DispatchRow<n>(width, [&]<int kPieces>(RowShare share) {
      Forward<T, n, kPieces><<<Blocks(rows, share.rows_of_block()), 256, 0, Handle(stream)>>>(
          share, rows, static_cast<float>(args.eps), Data<T>(args.x), Data<T>(args.y),
          Data<float>(args.rho));
    });
  });
  CheckLaunch("l2_norm");
}

template <class T>
void RunBackward(const Stream& stream, const L2NormBackwardArgs& args) {
  const int64_t rows = args.rho.size();
  if (rows == 0 || !args.dx.defined()) return;
  const int64_t width = args.y.size() / rows;
  DispatchPieces<T>(width, {args.dy, args.y, args.dx}, [&]<int n>() {
    DispatchRow<n>(width, [&]<int kPieces>(RowShare share) {
      Backward<T, n, kPieces><<<Blocks(rows, share.rows_of_block()), 256, 0, Handle(stream)>>>(
          share, rows, Data<T>(args.dy), Data<T>(args.y), Data<float>(args.rho), Data<T>(args.dx),
          args.accumulate_dx);
    });
  });
  CheckLaunch("l2_norm backward");
}

}  // namespace

void L2NormForward(Stream& stream, const L2NormForwardArgs& args) {
  DispatchType("l2_norm", args.x.dtype(), [&]<class T>() { RunForward<T>(stream, args); });
}

void L2NormBackward(Stream& stream, const L2NormBackwardArgs& args) {
  DispatchType("l2_norm", args.y.dtype(), [&]<class T>() { RunBackward<T>(stream, args); });
}

}  // namespace lt2::cuda
