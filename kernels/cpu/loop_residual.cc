#include "kernels/loop_residual.h"

#include "kernels/cpu/blocks.h"

namespace lt2::cpu {
namespace {

template <class T>
void Forward(const LoopResidualForwardArgs& args) {
  const int64_t d = args.rho.size(), size = args.x.size();
  const T *x_ND = args.x.data<T>(), *previous_ND = args.previous.data<T>();
  const T* rho = args.rho.data<T>();
  T* y_ND = args.y.data<T>();
  ForEachBlock(size / d, 32, size, [=](int64_t, int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const T *x = x_ND + n * d, *previous = previous_ND + n * d;
      T* y = y_ND + n * d;
#pragma omp simd
      for (int64_t i = 0; i < d; ++i) y[i] = x[i] + rho[i] * previous[i];
    }
  });
}

template <class T>
void Backward(const LoopResidualBackwardArgs& args) {
  const int64_t d = args.rho.size(), size = args.dy.size(), rows = size / d;
  const T *dy_ND = args.dy.data<T>(), *previous_ND = args.previous.data<T>();
  const T* rho = args.rho.data<T>();
  T* dprevious_ND = DataOrNull<T>(args.dprevious);
  const bool accumulate = args.accumulate_dprevious;
  const RowSums<T> sums(rows, d);
  ForEachBlock(rows, sums.Block(rows), size, [=](int64_t block, int64_t begin, int64_t end) {
    T* drho = sums.Line(block);
    for (int64_t n = begin; n < end; ++n) {
      const T *dy = dy_ND + n * d, *previous = previous_ND + n * d;
#pragma omp simd
      for (int64_t i = 0; i < d; ++i) drho[i] += dy[i] * previous[i];
      if (dprevious_ND == nullptr) continue;
      T* dprevious = dprevious_ND + n * d;
      if (accumulate) {
#pragma omp simd
        for (int64_t i = 0; i < d; ++i) dprevious[i] += dy[i] * rho[i];
      } else {
#pragma omp simd
        for (int64_t i = 0; i < d; ++i) dprevious[i] = dy[i] * rho[i];
      }
    }
  });
  sums.AddTo(args.drho.data<T>(), 0, d);
}

}  // namespace

void LoopResidualForward(Stream&, const LoopResidualForwardArgs& args) {
  DispatchFloat(args.x.dtype(), [&]<class T>() { Forward<T>(args); });
}

void LoopResidualBackward(Stream&, const LoopResidualBackwardArgs& args) {
  DispatchFloat(args.dy.dtype(), [&]<class T>() { Backward<T>(args); });
}

}  // namespace lt2::cpu
