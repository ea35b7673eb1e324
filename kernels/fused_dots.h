// Inner products in double, every product fused with its sum and channels in order: what choices
// are made of, the same bits on every backend.
#pragma once

#include <cmath>
#include <cstdint>

#ifdef __CUDACC__
#define LT2_HOST_DEVICE __host__ __device__
#define LT2_NOINLINE_ON_HOST
#else
#define LT2_HOST_DEVICE
#define LT2_NOINLINE_ON_HOST [[gnu::noinline]]
#endif

namespace lt2 {

// dots [kLanes]: of a [n], whose elements are `a_stride` apart, with the columns of b [n, kLanes],
// whose rows are `b_stride` apart. Not inlined: on its own the compiler keeps the sums in
// registers, which is half as fast again.
template <int kLanes, class T>
LT2_NOINLINE_ON_HOST LT2_HOST_DEVICE void FusedDots(const T* a, int64_t a_stride, int64_t n,
                                                    const double* b, int64_t b_stride,
                                                    double* dots) {
  double sum[kLanes] = {};
  for (int64_t d = 0; d < n; ++d, a += a_stride, b += b_stride) {
    const double a_d = *a;
#pragma omp simd
    for (int i = 0; i < kLanes; ++i) sum[i] = std::fma(a_d, b[i], sum[i]);
  }
  for (int i = 0; i < kLanes; ++i) dots[i] = sum[i];
}

}  // namespace lt2
