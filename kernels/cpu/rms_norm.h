// One row of an RMS norm, shared by the kernels that contain one.
#pragma once

#include <cmath>
#include <cstdint>

namespace lt2::cpu {

// (mean(x²) + eps)^(-1/2).
template <class T>
inline T ReciprocalRms(const T* x, int64_t d, double eps) {
  T squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t i = 0; i < d; ++i) squares += x[i] * x[i];
  return T(1) / std::sqrt(squares / T(d) + T(eps));
}

// Given dy * w = e, the factor c of dx = rstd e - c x: rstd³ mean(e x).
template <class T>
inline T RmsNormPull(const T* dy, const T* w, const T* x, T rstd, int64_t d) {
  T dot = 0;
#pragma omp simd reduction(+ : dot)
  for (int64_t i = 0; i < d; ++i) dot += dy[i] * w[i] * x[i];
  return rstd * rstd * rstd * dot / T(d);
}

}  // namespace lt2::cpu
