#include "kernels/cuda/row_pass.cuh"
#include "kernels/head_scale.h"

namespace lt2::cuda {
namespace {

// s is float, [N, H] (row_step = H) or [H] (row_step = 0); everything else is T.
template <class T, int n>
struct Forward {
  static constexpr int kSums = 0;
  const T *x, *o;  // o may be null
  const float* s;
  int64_t width, row_step;
  T* y;

  using Columns = int64_t;  // the head
  struct Row {
    Packed<T, n> x, o;
    float s;
  };
  __device__ Columns AtColumn(int64_t column) const { return column / width; }
  __device__ Row Load(int64_t row, int64_t at, const Columns& head) const {
    Row of = {LoadPacked<n>(x + at), {}, s[row * row_step + head]};
    if (o != nullptr) of.o = LoadPacked<n>(o + at);
    return of;
  }
  __device__ void Use(int64_t, int64_t at, const Columns&, const Row& row, Piece<n>*) const {
    Piece<n> out;
#pragma unroll
    for (int i = 0; i < n; ++i) out[i] = row.o[i] + row.s * row.x[i];
    Store<n>(y + at, out);
  }
};

// Where s is [H].
template <class T, int n>
struct SkipBackward {
  static constexpr int kSums = 1;
  const T *dy, *x;
  const float* s;
  int64_t width;
  T* dx;  // may be null
  bool accumulate;

  using Columns = float;  // s
  struct Row {
    Piece<n> dy, x;
  };
  __device__ Columns AtColumn(int64_t column) const { return s[column / width]; }
  __device__ Row Load(int64_t, int64_t at, const Columns&) const {
    return {cuda::Load<n>(dy + at), cuda::Load<n>(x + at)};
  }
  __device__ void Use(int64_t, int64_t at, const Columns& s, const Row& row, Piece<n>* sums) const {
    Piece<n> gradient;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      sums[0][i] += row.dy[i] * row.x[i];
      gradient[i] = s * row.dy[i];
    }
    if (dx != nullptr) StoreOrAdd<n>(dx + at, gradient, accumulate);
  }
};

// Where s is [N, H]: R rows of heads.
template <class T>
struct ScaleBackwardData {
  const T *dy_RP, *x_RP;
  const float* s_R;
  T* dx_RP;     // may be null
  float* ds_R;  // may be null
  bool accumulate_dx, accumulate_ds;
};

template <class T, int n, int kPieces>
__global__ void __launch_bounds__(256)
    ScaleBackward(RowShare share, int64_t rows, ScaleBackwardData<T> data) {
  const RowPlace<n, kPieces> place(share);
  const int64_t first = blockIdx.x * share.rows_of_block();
  const int64_t row = place.RowFrom(first, rows), at = row * place.width;
  Packed<T, n> dy[kPieces], x[kPieces];
  place.LoadRow(data.dy_RP + at, dy);
  place.LoadRow(data.x_RP + at, x);
  const float s = data.s_R[row];
  float product = 0;
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
#pragma unroll
    for (int i = 0; i < n; ++i) product += dy[j][i] * x[j][i];
  }
  const float ds = place.Sum(product);
  if (first + place.group >= rows) return;
  if (place.lane == 0 && data.ds_R != nullptr) {
    data.ds_R[row] = data.accumulate_ds ? data.ds_R[row] + ds : ds;
  }
  if (data.dx_RP == nullptr) return;
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
    Piece<n> dx;
#pragma unroll
    for (int i = 0; i < n; ++i) dx[i] = s * dy[j][i];
    place.StorePiece(data.dx_RP + at, j, dx, data.accumulate_dx);
  }
}

template <class T>
void RunScaleBackward(const Stream& stream, const HeadScaleBackwardArgs& args) {
  const int64_t width = args.x_NHP.dim(2), rows = args.s.size();
  if (rows == 0) return;
  const ScaleBackwardData<T> data{Data<T>(args.dy_NHP),       Data<T>(args.x_NHP),
                                  Data<float>(args.s),        DataOrNull<T>(args.dx_NHP),
                                  DataOrNull<float>(args.ds), args.accumulate_dx,
                                  args.accumulate_ds};
  DispatchPieces<T>(width, {args.dy_NHP, args.x_NHP, args.dx_NHP}, [&]<int n>() {
    DispatchRow<n>(width, [&]<int kPieces>(RowShare share) {
      ScaleBackward<T, n, kPieces>
          <<<Blocks(rows, share.rows_of_block()), 256, 0, Handle(stream)>>>(share, rows, data);
    });
  });
  CheckLaunch("head_scale backward");
}

template <class T>
void RunSkipBackward(const Stream& stream, const HeadScaleBackwardArgs& args) {
  const int64_t width = args.x_NHP.dim(2), columns = args.x_NHP.dim(1) * width;
  DispatchPieces<T>(width, {args.dy_NHP, args.x_NHP, args.dx_NHP}, [&]<int n>() {
    const SkipBackward<T, n> pass{Data<T>(args.dy_NHP),       Data<T>(args.x_NHP),
                                  Data<float>(args.s),        width,
                                  DataOrNull<T>(args.dx_NHP), args.accumulate_dx};
    ColumnPass<n>(stream, "head_skip backward", args.x_NHP.dim(0), columns, pass)
        .FinishGroups(stream, "head_skip backward", 0, width, DataOrNull<float>(args.ds));
  });
}

}  // namespace

void HeadScaleForward(Stream& stream, const HeadScaleForwardArgs& args) {
  const int64_t heads = args.x_NHP.dim(1), width = args.x_NHP.dim(2);
  const int64_t row_step = args.s.shape().rank() == 2 ? heads : 0;
  DispatchType("head_scale", args.x_NHP.dtype(), [&]<class T>() {
    DispatchPieces<T>(width, {args.x_NHP, args.o_NHP, args.y_NHP}, [&]<int n>() {
      const Forward<T, n> pass{
          Data<T>(args.x_NHP), DataOrNull<T>(args.o_NHP), Data<float>(args.s), width, row_step,
          Data<T>(args.y_NHP)};
      ColumnPass<n>(stream, "head_scale", args.x_NHP.dim(0), heads * width, pass);
    });
  });
}

void HeadScaleBackward(Stream& stream, const HeadScaleBackwardArgs& args) {
  DispatchType("head_scale", args.x_NHP.dtype(), [&]<class T>() {
    args.s.shape().rank() == 2 ? RunScaleBackward<T>(stream, args)
                               : RunSkipBackward<T>(stream, args);
  });
}

}  // namespace lt2::cuda
