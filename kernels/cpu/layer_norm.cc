#include "kernels/layer_norm.h"

#include <cmath>

#include "kernels/cpu/blocks.h"

namespace lt2::cpu {
namespace {

template <class T>
void ForwardGroup(const T* x, const T* w, int64_t v, double eps, T* y, T* mean, T* rstd) {
  T sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < v; ++i) sum += x[i];
  const T m = sum / T(v);
#pragma omp simd reduction(+ : squares)
  for (int64_t i = 0; i < v; ++i) squares += (x[i] - m) * (x[i] - m);
  const T r = T(1) / std::sqrt(squares / T(v) + T(eps));
#pragma omp simd
  for (int64_t i = 0; i < v; ++i) y[i] = (x[i] - m) * r * w[i];
  *mean = m;
  *rstd = r;
}

// dx may be null. dw is added to.
template <class T>
void BackwardGroup(const T* dy, const T* x, const T* w, T mean, T rstd, int64_t v, bool accumulate,
                   T* dx, T* dw) {
  T sum = 0, dot = 0;
#pragma omp simd reduction(+ : sum, dot)
  for (int64_t i = 0; i < v; ++i) {
    const T e = dy[i] * w[i], normed = (x[i] - mean) * rstd;
    dw[i] += dy[i] * normed;
    sum += e;
    dot += e * normed;
  }
  if (dx == nullptr) return;
  sum /= T(v);
  dot /= T(v);
  if (accumulate) {
#pragma omp simd
    for (int64_t i = 0; i < v; ++i) {
      dx[i] += rstd * (dy[i] * w[i] - sum - (x[i] - mean) * rstd * dot);
    }
  } else {
#pragma omp simd
    for (int64_t i = 0; i < v; ++i) {
      dx[i] = rstd * (dy[i] * w[i] - sum - (x[i] - mean) * rstd * dot);
    }
  }
}

template <class T>
void Forward(const LayerNormForwardArgs& args) {
  const int64_t c = args.w.size(), size = args.x.size(), rows = size / c;
  const int64_t groups = args.rstd.size() / rows, v = c / groups;
  const T *x = args.x.data<T>(), *w = args.w.data<T>();
  T *y = args.y.data<T>(), *mean = args.mean.data<T>(), *rstd = args.rstd.data<T>();
  ForEachBlock(rows, 32, size, [=, eps = args.eps](int64_t, int64_t begin, int64_t end) {
    for (int64_t g = begin * groups; g < end * groups; ++g) {
      ForwardGroup(x + g * v, w + g % groups * v, v, eps, y + g * v, mean + g, rstd + g);
    }
  });
}

template <class T>
void Backward(const LayerNormBackwardArgs& args) {
  const int64_t c = args.w.size(), size = args.x.size(), rows = size / c;
  const int64_t groups = args.rstd.size() / rows, v = c / groups;
  const T *dy = args.dy.data<T>(), *x = args.x.data<T>(), *w = args.w.data<T>();
  const T *mean = args.mean.data<T>(), *rstd = args.rstd.data<T>();
  T* dx = DataOrNull<T>(args.dx);
  const bool accumulate = args.accumulate_dx;
  const RowSums<T> sums(rows, c);
  ForEachBlock(rows, sums.Block(rows), size, [=](int64_t block, int64_t begin, int64_t end) {
    T* dw = sums.Line(block);
    for (int64_t g = begin * groups; g < end * groups; ++g) {
      const int64_t channel = g % groups * v;
      BackwardGroup(dy + g * v, x + g * v, w + channel, mean[g], rstd[g], v, accumulate,
                    dx == nullptr ? nullptr : dx + g * v, dw + channel);
    }
  });
  sums.AddTo(args.dw.data<T>(), 0, c);
}

}  // namespace

void LayerNormForward(Stream&, const LayerNormForwardArgs& args) {
  DispatchFloat(args.x.dtype(), [&]<class T>() { Forward<T>(args); });
}

void LayerNormBackward(Stream&, const LayerNormBackwardArgs& args) {
  DispatchFloat(args.x.dtype(), [&]<class T>() { Backward<T>(args); });
}

}  // namespace lt2::cpu
