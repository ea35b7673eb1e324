#include "kernels/split_rms_norm.h"

#include <cmath>

#include "kernels/cpu/blocks.h"

namespace lt2::cpu {
namespace {

template <class T>
void Sums(const SplitRmsNormSumsArgs& args) {
  const int64_t C = args.w.size(), rows = args.sums_N.size();
  const T *x_NC = args.x.data<T>(), *dy_NC = DataOrNull<T>(args.dy), *w = args.w.data<T>();
  T* sums_N = args.sums_N.data<T>();
  ForEachBlock(rows, 32, args.x.size(), [=](int64_t, int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const T* x = x_NC + n * C;
      T sum = 0;
      if (dy_NC == nullptr) {
#pragma omp simd reduction(+ : sum)
        for (int64_t c = 0; c < C; ++c) sum += x[c] * x[c];
      } else {
        const T* dy = dy_NC + n * C;
#pragma omp simd reduction(+ : sum)
        for (int64_t c = 0; c < C; ++c) sum += dy[c] * w[c] * x[c];
      }
      sums_N[n] = sum;
    }
  });
}

template <class T>
void Forward(const SplitRmsNormForwardArgs& args) {
  const int64_t C = args.w.size(), rows = args.rstd_N.size();
  const T *x_NC = args.x.data<T>(), *w = args.w.data<T>(), *squares = args.squares_N.data<T>();
  T *y_NC = args.y.data<T>(), *rstd_N = args.rstd_N.data<T>();
  const T channels = static_cast<T>(args.channels), eps = static_cast<T>(args.eps);
  ForEachBlock(rows, 32, args.x.size(), [=](int64_t, int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const T rstd = T(1) / std::sqrt(squares[n] / channels + eps);
      const T* x = x_NC + n * C;
      T* y = y_NC + n * C;
#pragma omp simd
      for (int64_t c = 0; c < C; ++c) y[c] = x[c] * rstd * w[c];
      rstd_N[n] = rstd;
    }
  });
}

template <class T>
void Backward(const SplitRmsNormBackwardArgs& args) {
  const int64_t C = args.w.size(), rows = args.rstd_N.size();
  const T *dy_NC = args.dy.data<T>(), *x_NC = args.x.data<T>(), *w = args.w.data<T>();
  const T *rstd_N = args.rstd_N.data<T>(), *products = args.products_N.data<T>();
  T* dx_NC = DataOrNull<T>(args.dx);
  const T channels = static_cast<T>(args.channels);
  const RowSums<T> sums(rows, C);
  const bool accumulate = args.accumulate_dx;
  ForEachBlock(rows, sums.Block(rows), args.x.size(),
               [=](int64_t block, int64_t begin, int64_t end) {
                 T* dw = sums.Line(block);
                 for (int64_t n = begin; n < end; ++n) {
                   const T *x = x_NC + n * C, *dy = dy_NC + n * C;
                   const T rstd = rstd_N[n], pull = products[n] * rstd * rstd * rstd / channels;
#pragma omp simd
                   for (int64_t c = 0; c < C; ++c) dw[c] += dy[c] * x[c] * rstd;
                   if (dx_NC == nullptr) continue;
                   T* dx = dx_NC + n * C;
#pragma omp simd
                   for (int64_t c = 0; c < C; ++c) {
                     dx[c] = (accumulate ? dx[c] : T(0)) + (dy[c] * w[c] * rstd - pull * x[c]);
                   }
                 }
               });
  sums.AddTo(args.dw.data<T>(), 0, C);
}

}  // namespace

void SplitRmsNormSums(Stream&, const SplitRmsNormSumsArgs& args) {
  DispatchFloat(args.x.dtype(), [&]<class T>() { Sums<T>(args); });
}

void SplitRmsNormForward(Stream&, const SplitRmsNormForwardArgs& args) {
  DispatchFloat(args.x.dtype(), [&]<class T>() { Forward<T>(args); });
}

void SplitRmsNormBackward(Stream&, const SplitRmsNormBackwardArgs& args) {
  DispatchFloat(args.x.dtype(), [&]<class T>() { Backward<T>(args); });
}

}  // namespace lt2::cpu
