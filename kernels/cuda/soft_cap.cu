#include "kernels/cuda/column_pass.cuh"
#include "kernels/soft_cap.h"

namespace lt2::cuda {
namespace {

// x and dx are T; y and dy, what gates are made from, are float.
template <class T, int n>
struct Forward {
  static constexpr int kSums = 0;
  const T* x;
  const float* b;
  float* y;
  float cap;

  using Columns = Piece<n>;
  using Row = Piece<n>;
  __device__ Columns AtColumn(int64_t column) const { return cuda::Load<n>(b + column); }
  __device__ Row Load(int64_t, int64_t at, const Columns&) const { return cuda::Load<n>(x + at); }
  __device__ void Use(int64_t, int64_t at, const Columns& b, const Row& x, Piece<n>*) const {
    Piece<n> capped;
#pragma unroll
    for (int i = 0; i < n; ++i) capped[i] = cap * tanhf((x[i] + b[i]) / cap);
    Store<n>(y + at, capped);
  }
};

template <class T, int n>
struct Backward {
  static constexpr int kSums = 1;
  const float *dy, *y;
  T* dx;  // may be null
  float inverse;
  bool accumulate;

  struct Columns {};
  struct Row {
    Piece<n> dy, y;
  };
  __device__ Columns AtColumn(int64_t) const { return {}; }
  __device__ Row Load(int64_t, int64_t at, const Columns&) const {
    return {cuda::Load<n>(dy + at), cuda::Load<n>(y + at)};
  }
  __device__ void Use(int64_t, int64_t at, const Columns&, const Row& row, Piece<n>* sums) const {
    Piece<n> dz;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const float t = row.y[i] * inverse;
      dz[i] = row.dy[i] * (1 - t * t);
      sums[0][i] += dz[i];
    }
    if (dx != nullptr) StoreOrAdd<n>(dx + at, dz, accumulate);
  }
};

template <class T>
void RunBackward(const Stream& stream, const SoftCapBackwardArgs& args) {
  const int64_t columns = args.db.size(), rows = args.y.size() / columns;
  DispatchPieces<T>(columns, {args.dy, args.y, args.dx}, [&]<int n>() {
    const Backward<T, n> pass{Data<float>(args.dy), Data<float>(args.y), DataOrNull<T>(args.dx),
                              static_cast<float>(1 / args.cap), args.accumulate_dx};
    ColumnPass<n>(stream, "soft_cap backward", rows, columns, pass)
        .Finish(stream, "soft_cap backward", 0, Data<float>(args.db));
  });
}

}  // namespace

void SoftCapForward(Stream& stream, const SoftCapForwardArgs& args) {
  const int64_t columns = args.b.size(), rows = args.x.size() / columns;
  DispatchType("soft_cap", args.x.dtype(), [&]<class T>() {
    DispatchPieces<T>(columns, {args.x, args.b, args.y}, [&]<int n>() {
      const Forward<T, n> pass{Data<T>(args.x), Data<float>(args.b), Data<float>(args.y),
                               static_cast<float>(args.cap)};
      ColumnPass<n>(stream, "soft_cap", rows, columns, pass);
    });
  });
}

void SoftCapBackward(Stream& stream, const SoftCapBackwardArgs& args) {
  const DType dtype = args.dx.defined() ? args.dx.dtype() : DType::kF32;
  DispatchType("soft_cap", dtype, [&]<class T>() { RunBackward<T>(stream, args); });
}

}  // namespace lt2::cuda
