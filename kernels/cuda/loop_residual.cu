#include "kernels/cuda/column_pass.cuh"
#include "kernels/loop_residual.h"

namespace lt2::cuda {
namespace {

template <class T, int n>
struct Forward {
  static constexpr int kSums = 0;
  const T *x, *previous;
  const float* rho;
  T* y;

  using Columns = Piece<n>;
  struct Row {
    Piece<n> x, previous;
  };
  __device__ Columns AtColumn(int64_t column) const { return cuda::Load<n>(rho + column); }
  __device__ Row Load(int64_t, int64_t at, const Columns&) const {
    return {cuda::Load<n>(x + at), cuda::Load<n>(previous + at)};
  }
  __device__ void Use(int64_t, int64_t at, const Columns& rho, const Row& row, Piece<n>*) const {
    Piece<n> sum;
#pragma unroll
    for (int i = 0; i < n; ++i) sum[i] = row.x[i] + rho[i] * row.previous[i];
    Store<n>(y + at, sum);
  }
};

template <class T, int n>
struct Backward {
  static constexpr int kSums = 1;
  const T *dy, *previous;
  const float* rho;
  T* dprevious;  // may be null
  bool accumulate;

  using Columns = Piece<n>;
  struct Row {
    Piece<n> dy, previous;
  };
  __device__ Columns AtColumn(int64_t column) const { return cuda::Load<n>(rho + column); }
  __device__ Row Load(int64_t, int64_t at, const Columns&) const {
    return {cuda::Load<n>(dy + at), cuda::Load<n>(previous + at)};
  }
  __device__ void Use(int64_t, int64_t at, const Columns& rho, const Row& row,
                      Piece<n>* sums) const {
    Piece<n> gradient;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      sums[0][i] += row.dy[i] * row.previous[i];
      gradient[i] = row.dy[i] * rho[i];
    }
    if (dprevious != nullptr) StoreOrAdd<n>(dprevious + at, gradient, accumulate);
  }
};

}  // namespace

void LoopResidualForward(Stream& stream, const LoopResidualForwardArgs& args) {
  const int64_t d = args.rho.size(), rows = args.x.size() / d;
  DispatchType("loop_residual", args.x.dtype(), [&]<class T>() {
    DispatchPieces<T>(d, {args.x, args.previous, args.rho, args.y}, [&]<int n>() {
      const Forward<T, n> pass{Data<T>(args.x), Data<T>(args.previous), Data<float>(args.rho),
                               Data<T>(args.y)};
      ColumnPass<n>(stream, "loop_residual", rows, d, pass);
    });
  });
}

void LoopResidualBackward(Stream& stream, const LoopResidualBackwardArgs& args) {
  const int64_t d = args.rho.size(), rows = args.dy.size() / d;
  DispatchType("loop_residual", args.dy.dtype(), [&]<class T>() {
    DispatchPieces<T>(d, {args.dy, args.previous, args.rho, args.dprevious}, [&]<int n>() {
      const Backward<T, n> pass{Data<T>(args.dy), Data<T>(args.previous), Data<float>(args.rho),
                                DataOrNull<T>(args.dprevious), args.accumulate_dprevious};
      ColumnPass<n>(stream, "loop_residual backward", rows, d, pass)
          .Finish(stream, "loop_residual backward", 0, Data<float>(args.drho));
    });
  });
}

}  // namespace lt2::cuda
