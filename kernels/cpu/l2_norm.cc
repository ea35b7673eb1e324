#include "kernels/l2_norm.h"

#include <cmath>

#include "kernels/cpu/blocks.h"

namespace lt2::cpu {
namespace {

template <class T>
void Forward(const L2NormForwardArgs& args) {
  const int64_t rows = args.rho.size(), size = args.x.size(), d = size / rows;
  const T* x_RD = args.x.data<T>();
  T *y_RD = args.y.data<T>(), *rho_R = args.rho.data<T>();
  ForEachBlock(rows, 64, size, [=, eps = args.eps](int64_t, int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const T* x = x_RD + n * d;
      T *y = y_RD + n * d, squares = 0;
#pragma omp simd reduction(+ : squares)
      for (int64_t i = 0; i < d; ++i) squares += x[i] * x[i];
      const T rho = T(1) / std::sqrt(squares + T(eps));
#pragma omp simd
      for (int64_t i = 0; i < d; ++i) y[i] = x[i] * rho;
      rho_R[n] = rho;
    }
  });
}

template <class T>
void Backward(const L2NormBackwardArgs& args) {
  if (!args.dx.defined()) return;
  const int64_t rows = args.rho.size(), size = args.y.size(), d = size / rows;
  const T *dy_RD = args.dy.data<T>(), *y_RD = args.y.data<T>(), *rho_R = args.rho.data<T>();
  T* dx_RD = args.dx.data<T>();
  const bool accumulate = args.accumulate_dx;
  ForEachBlock(rows, 64, size, [=](int64_t, int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const T *dy = dy_RD + n * d, *y = y_RD + n * d;
      T *dx = dx_RD + n * d, dot = 0;
#pragma omp simd reduction(+ : dot)
      for (int64_t i = 0; i < d; ++i) dot += dy[i] * y[i];
      const T rho = rho_R[n];
      if (accumulate) {
#pragma omp simd
        for (int64_t i = 0; i < d; ++i) dx[i] += rho * (dy[i] - y[i] * dot);
      } else {
#pragma omp simd
        for (int64_t i = 0; i < d; ++i) dx[i] = rho * (dy[i] - y[i] * dot);
      }
    }
  });
}

}  // namespace

void L2NormForward(Stream&, const L2NormForwardArgs& args) {
  DispatchFloat(args.x.dtype(), [&]<class T>() { Forward<T>(args); });
}

void L2NormBackward(Stream&, const L2NormBackwardArgs& args) {
  DispatchFloat(args.y.dtype(), [&]<class T>() { Backward<T>(args); });
}

}  // namespace lt2::cpu
