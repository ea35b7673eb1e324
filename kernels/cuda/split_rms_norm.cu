#include "kernels/cuda/row_pass.cuh"
#include "kernels/split_rms_norm.h"

namespace lt2::cuda {
namespace {

constexpr const char* kName = "split_rms_norm";

// dy may be null.
template <class T, int n>
__global__ void __launch_bounds__(256) Sums(RowShare share, int64_t rows, const T* x_NC,
                                            const T* dy_NC, const float* w_C, float* sums_N) {
  const RowPlace<n, 1> place(share);
  const int64_t first = blockIdx.x * share.rows_of_block();
  const int64_t row = place.RowFrom(first, rows), at = row * place.width;
  float sum = 0;
#pragma unroll 4
  for (int column = place.lane * n; column < place.width; column += place.lanes * n) {
    const Piece<n> x = Load<n>(x_NC + at + column);
    Piece<n> other = x;
    if (dy_NC != nullptr) {
      const Piece<n> dy = Load<n>(dy_NC + at + column), w = Load<n>(w_C + column);
#pragma unroll
      for (int i = 0; i < n; ++i) other[i] = dy[i] * w[i];
    }
#pragma unroll
    for (int i = 0; i < n; ++i) sum += x[i] * other[i];
  }
  sum = place.Sum(sum);
  if (place.lane == 0 && first + place.group < rows) sums_N[row] = sum;
}

template <class T, int n>
struct Forward {
  static constexpr int kSums = 0;
  int64_t width;  // the channels here
  const T* x_NC;
  const float *w_C, *squares_N;
  T* y_NC;
  float *rstd_N, channels, eps;

  using Columns = Piece<n>;
  struct Row {
    Piece<n> x;
    float rstd;
  };
  __device__ Columns AtColumn(int64_t column) const { return cuda::Load<n>(w_C + column); }
  __device__ Row Load(int64_t row, int64_t at, const Columns&) const {
    return {cuda::Load<n>(x_NC + at), rsqrtf(squares_N[row] / channels + eps)};
  }
  __device__ void Use(int64_t row, int64_t at, const Columns& w, const Row& of, Piece<n>*) const {
    Piece<n> y;
#pragma unroll
    for (int i = 0; i < n; ++i) y[i] = of.x[i] * of.rstd * w[i];
    Store<n>(y_NC + at, y);
    if (at == row * width) rstd_N[row] = of.rstd;
  }
};

template <class T, int n>
struct Backward {
  static constexpr int kSums = 1;
  const T *dy_NC, *x_NC;
  const float *w_C, *rstd_N, *products_N;
  T* dx_NC;  // may be null
  float channels;
  bool accumulate;

  using Columns = Piece<n>;
  struct Row {
    Piece<n> dy, x;
    float rstd, product;
  };
  __device__ Columns AtColumn(int64_t column) const { return cuda::Load<n>(w_C + column); }
  __device__ Row Load(int64_t row, int64_t at, const Columns&) const {
    return {cuda::Load<n>(dy_NC + at), cuda::Load<n>(x_NC + at), rstd_N[row], products_N[row]};
  }
  __device__ void Use(int64_t, int64_t at, const Columns& w, const Row& of, Piece<n>* dw) const {
    const float pull = of.product * of.rstd * of.rstd * of.rstd / channels;
    Piece<n> dx;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      dw[0][i] += of.dy[i] * of.x[i] * of.rstd;
      dx[i] = of.dy[i] * w[i] * of.rstd - pull * of.x[i];
    }
    if (dx_NC != nullptr) StoreOrAdd<n>(dx_NC + at, dx, accumulate);
  }
};

template <class T>
void RunSums(const Stream& stream, const SplitRmsNormSumsArgs& args) {
  const int64_t rows = args.sums_N.size(), width = args.w.size();
  if (rows == 0) return;
  DispatchPieces<T>(width, {args.x, args.dy, args.w}, [&]<int n>() {
    DispatchRow<n>(width, [&]<int>(RowShare share) {
      Sums<T, n><<<Blocks(rows, share.rows_of_block()), 256, 0, Handle(stream)>>>(
          share, rows, Data<T>(args.x), DataOrNull<T>(args.dy), Data<float>(args.w),
          Data<float>(args.sums_N));
    });
  });
  CheckLaunch(kName);
}

template <class T>
void RunForward(const Stream& stream, const SplitRmsNormForwardArgs& args) {
  const int64_t width = args.w.size();
  DispatchPieces<T>(width, {args.x, args.w, args.y}, [&]<int n>() {
    const Forward<T, n> pass{.width = width,
                             .x_NC = Data<T>(args.x),
                             .w_C = Data<float>(args.w),
                             .squares_N = Data<float>(args.squares_N),
                             .y_NC = Data<T>(args.y),
                             .rstd_N = Data<float>(args.rstd_N),
                             .channels = static_cast<float>(args.channels),
                             .eps = static_cast<float>(args.eps)};
    ColumnPass<n>(stream, kName, args.rstd_N.size(), width, pass);
  });
}

template <class T>
void RunBackward(const Stream& stream, const SplitRmsNormBackwardArgs& args) {
  const int64_t rows = args.rstd_N.size(), width = args.w.size();
  DispatchPieces<T>(width, {args.dy, args.x, args.w, args.dx}, [&]<int n>() {
    const Backward<T, n> pass{.dy_NC = Data<T>(args.dy),
                              .x_NC = Data<T>(args.x),
                              .w_C = Data<float>(args.w),
                              .rstd_N = Data<float>(args.rstd_N),
                              .products_N = Data<float>(args.products_N),
                              .dx_NC = DataOrNull<T>(args.dx),
                              .channels = static_cast<float>(args.channels),
                              .accumulate = args.accumulate_dx};
    ColumnPass<n>(stream, kName, rows, width, pass).Finish(stream, kName, 0, Data<float>(args.dw));
  });
}

}  // namespace

void SplitRmsNormSums(Stream& stream, const SplitRmsNormSumsArgs& args) {
  DispatchType(kName, args.x.dtype(), [&]<class T>() { RunSums<T>(stream, args); });
}

void SplitRmsNormForward(Stream& stream, const SplitRmsNormForwardArgs& args) {
  DispatchType(kName, args.x.dtype(), [&]<class T>() { RunForward<T>(stream, args); });
}

void SplitRmsNormBackward(Stream& stream, const SplitRmsNormBackwardArgs& args) {
  DispatchType(kName, args.x.dtype(), [&]<class T>() { RunBackward<T>(stream, args); });
}

}  // namespace lt2::cuda
