#include "kernels/add_rms_norm.h"

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/rms_norm.h"

namespace lt2::cpu {
namespace {

template <class T>
void Forward(const AddRmsNormForwardArgs& args) {
  const int64_t d = args.w.size(), size = args.x.size(), rows = size / d;
  const T *x_ND = args.x.data<T>(), *residual_ND = args.residual.data<T>(), *w = args.w.data<T>();
  T *sum_ND = args.sum.data<T>(), *y_ND = args.y.data<T>(), *rstd_N = args.rstd.data<T>();
  ForEachBlock(rows, 32, size, [=, eps = args.eps](int64_t, int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const T *x = x_ND + n * d, *residual = residual_ND + n * d;
      T *sum = sum_ND + n * d, *y = y_ND + n * d;
#pragma omp simd
      for (int64_t i = 0; i < d; ++i) sum[i] = x[i] + residual[i];
      const T rstd = ReciprocalRms(sum, d, eps);
#pragma omp simd
      for (int64_t i = 0; i < d; ++i) y[i] = sum[i] * rstd * w[i];
      rstd_N[n] = rstd;
    }
  });
}

}  // namespace

void AddRmsNormForward(Stream&, const AddRmsNormForwardArgs& args) {
  DispatchFloat(args.x.dtype(), [&]<class T>() { Forward<T>(args); });
}

}  // namespace lt2::cpu
