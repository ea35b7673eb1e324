#include "kernels/rms_norm.h"

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/rms_norm.h"

namespace lt2::cpu {
namespace {

// Rows here are groups of a row's channels: one a reciprocal.
struct Groups {
  Groups(const Tensor& w, const Tensor& rstd)
      : groups(rstd.shape().rank() > 1 ? rstd.shape().back() : 1), channels(w.size() / groups) {}
  int64_t groups, channels;
};

template <class T>
void Forward(const RmsNormForwardArgs& args) {
  const Groups of(args.w, args.rstd);
  const int64_t d = of.channels, size = args.x.size(), rows = args.rstd.size();
  const T *x_ND = args.x.data<T>(), *w_D = args.w.data<T>();
  T *y_ND = args.y.data<T>(), *rstd_N = args.rstd.data<T>();
  ForEachBlock(rows, 32, size, [=, eps = args.eps](int64_t, int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const T *x = x_ND + n * d, *w = w_D + n % of.groups * d;
      T* y = y_ND + n * d;
      const T rstd = ReciprocalRms(x, d, eps);
#pragma omp simd
      for (int64_t i = 0; i < d; ++i) y[i] = x[i] * rstd * w[i];
      rstd_N[n] = rstd;
    }
  });
}

template <class T>
void Backward(const RmsNormBackwardArgs& args) {
  const Groups of(args.w, args.rstd);
  const int64_t d = of.channels, size = args.x.size(), rows = args.rstd.size();
  const T *dy_ND = args.dy.data<T>(), *x_ND = args.x.data<T>(), *w_D = args.w.data<T>();
  const T *rstd_N = args.rstd.data<T>(), *through_ND = DataOrNull<T>(args.through);
  T* dx_ND = DataOrNull<T>(args.dx);
  const RowSums<T> sums(rows, args.w.size());
  const bool accumulate = args.accumulate_dx;
  ForEachBlock(rows, sums.Block(rows), size, [=](int64_t block, int64_t begin, int64_t end) {
    T* line = sums.Line(block);
    for (int64_t n = begin; n < end; ++n) {
      const int64_t first = n % of.groups * d;
      const T *x = x_ND + n * d, *dy = dy_ND + n * d, *w = w_D + first;
      T* dw = line + first;
      const T rstd = rstd_N[n];
#pragma omp simd
      for (int64_t i = 0; i < d; ++i) dw[i] += dy[i] * x[i] * rstd;
      if (dx_ND == nullptr) continue;
      const T pull = RmsNormPull(dy, w, x, rstd, d);
      T* dx = dx_ND + n * d;
      if (through_ND == nullptr && !accumulate) {
#pragma omp simd
        for (int64_t i = 0; i < d; ++i) dx[i] = dy[i] * w[i] * rstd - pull * x[i];
        continue;
      }
      const T* other = accumulate ? dx : through_ND + n * d;
#pragma omp simd
      for (int64_t i = 0; i < d; ++i) dx[i] = other[i] + (dy[i] * w[i] * rstd - pull * x[i]);
      if (accumulate && through_ND != nullptr) Store(dx, through_ND + n * d, d, true);
    }
  });
  sums.AddTo(args.dw.data<T>(), 0, args.w.size());
}

}  // namespace

void RmsNormForward(Stream&, const RmsNormForwardArgs& args) {
  DispatchFloat(args.x.dtype(), [&]<class T>() { Forward<T>(args); });
}

void RmsNormBackward(Stream&, const RmsNormBackwardArgs& args) {
  DispatchFloat(args.x.dtype(), [&]<class T>() { Backward<T>(args); });
}

}  // namespace lt2::cpu
