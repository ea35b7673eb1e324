#include "kernels/head_scale.h"

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/scan_rows.h"

namespace lt2::cpu {
namespace {

template <class T>
void Forward(const HeadScaleForwardArgs& args) {
  const int64_t width = args.x_NHP.dim(2), numbers = args.s.size(), size = args.x_NHP.size();
  const T *x_RP = args.x_NHP.data<T>(), *s = args.s.data<T>(), *o_RP = DataOrNull<T>(args.o_NHP);
  T* y_RP = args.y_NHP.data<T>();
  ForEachBlock(size / width, 64, size, [=](int64_t, int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T s_r = s[r % numbers], *x = x_RP + r * width;
      T* y = y_RP + r * width;
      if (o_RP != nullptr) {
        const T* o = o_RP + r * width;
#pragma omp simd
        for (int64_t i = 0; i < width; ++i) y[i] = o[i] + s_r * x[i];
      } else {
#pragma omp simd
        for (int64_t i = 0; i < width; ++i) y[i] = s_r * x[i];
      }
    }
  });
}

template <class T>
void Backward(const HeadScaleBackwardArgs& args) {
  const int64_t heads = args.x_NHP.dim(1), width = args.x_NHP.dim(2), size = args.x_NHP.size();
  const int64_t tokens = args.x_NHP.dim(0), numbers = args.s.size();
  const bool per_token = args.s.shape().rank() == 2;
  const T *dy_RP = args.dy_NHP.data<T>(), *x_RP = args.x_NHP.data<T>(), *s = args.s.data<T>();
  T *dx_RP = DataOrNull<T>(args.dx_NHP), *ds = DataOrNull<T>(args.ds);
  const bool accumulate_dx = args.accumulate_dx, accumulate_ds = args.accumulate_ds;
  const RowSums<T> sums(tokens, heads);
  ForEachBlock(tokens, sums.Block(tokens), size, [=](int64_t block, int64_t begin, int64_t end) {
    T* line = sums.Line(block);
    for (int64_t r = begin * heads; r < end * heads; ++r) {
      const T *dy = dy_RP + r * width, *x = x_RP + r * width, s_r = s[r % numbers];
      const T dot = Dot(dy, x, width);
      if (!per_token) {
        line[r % heads] += dot;
      } else if (ds != nullptr) {
        ds[r] = (accumulate_ds ? ds[r] : T(0)) + dot;
      }
      if (dx_RP == nullptr) continue;
      T* dx = dx_RP + r * width;
      if (accumulate_dx) {
#pragma omp simd
        for (int64_t i = 0; i < width; ++i) dx[i] += s_r * dy[i];
      } else {
#pragma omp simd
        for (int64_t i = 0; i < width; ++i) dx[i] = s_r * dy[i];
      }
    }
  });
  if (!per_token && ds != nullptr) sums.AddTo(ds, 0, heads);
}

}  // namespace

void HeadScaleForward(Stream&, const HeadScaleForwardArgs& args) {
  DispatchFloat(args.x_NHP.dtype(), [&]<class T>() { Forward<T>(args); });
}

void HeadScaleBackward(Stream&, const HeadScaleBackwardArgs& args) {
  DispatchFloat(args.x_NHP.dtype(), [&]<class T>() { Backward<T>(args); });
}

}  // namespace lt2::cpu
