#include "kernels/add_bias.h"
#include "kernels/cuda/column_pass.cuh"

namespace lt2::cuda {
namespace {

template <class T, int n>
struct Forward {
  static constexpr int kSums = 0;
  const T* x;
  const float* b;
  T* y;

  using Columns = Piece<n>;
  using Row = Piece<n>;
  __device__ Columns AtColumn(int64_t column) const { return cuda::Load<n>(b + column); }
  __device__ Row Load(int64_t, int64_t at, const Columns&) const { return cuda::Load<n>(x + at); }
  __device__ void Use(int64_t, int64_t at, const Columns& b, const Row& x, Piece<n>*) const {
    Piece<n> sum;
#pragma unroll
    for (int i = 0; i < n; ++i) sum[i] = x[i] + b[i];
    Store<n>(y + at, sum);
  }
};

template <class T, int n>
struct Backward {
  static constexpr int kSums = 1;
  const T* dy;

  struct Columns {};
  using Row = Piece<n>;
  __device__ Columns AtColumn(int64_t) const { return {}; }
  __device__ Row Load(int64_t, int64_t at, const Columns&) const { return cuda::Load<n>(dy + at); }
  __device__ void Use(int64_t, int64_t, const Columns&, const Row& dy, Piece<n>* sums) const {
#pragma unroll
    for (int i = 0; i < n; ++i) sums[0][i] += dy[i];
  }
};

}  // namespace

void AddBiasForward(Stream& stream, const AddBiasForwardArgs& args) {
  const int64_t columns = args.b.size(), rows = args.x.size() / columns;
  DispatchType("add_bias", args.x.dtype(), [&]<class T>() {
    DispatchPieces<T>(columns, {args.x, args.b, args.y}, [&]<int n>() {
      const Forward<T, n> pass{Data<T>(args.x), Data<float>(args.b), Data<T>(args.y)};
      ColumnPass<n>(stream, "add_bias", rows, columns, pass);
    });
  });
}

void AddBiasBackward(Stream& stream, const AddBiasBackwardArgs& args) {
  const int64_t columns = args.db.size(), rows = args.dy.size() / columns;
  DispatchType("add_bias", args.dy.dtype(), [&]<class T>() {
    DispatchPieces<T>(columns, {args.dy}, [&]<int n>() {
      ColumnPass<n>(stream, "add_bias backward", rows, columns, Backward<T, n>{Data<T>(args.dy)})
          .Finish(stream, "add_bias backward", 0, Data<float>(args.db));
    });
  });
}

}  // namespace lt2::cuda
