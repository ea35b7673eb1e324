// Transcendental functions that GCC vectorises inside `#pragma omp simd` loops: float ones are
// branch-free polynomials within about 2 ulp, double ones are the library's.
//
// Exp covers the whole range: Exp(-inf) = 0, overflow is inf, denormals are right, NaN stays NaN.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace lt2::cpu {

// exp(x) = 2^n exp(r), |r| <= ln(2) / 2. 2^n is applied in two halves so that it never overflows
// before the result does.
inline float Exp(float x) {
  constexpr float kRound = 0x1.8p23f;  // adding it leaves the nearest integer in the low bits
  x = 89.0f < x ? 89.0f : x;           // in this order a NaN passes
  x = -104.0f > x ? -104.0f : x;
  const float shifted = std::fma(x, 0x1.715476p+0f, kRound);
  const float n = shifted - kRound;
  float r = std::fma(n, -0x1.62e4p-1f, x);  // ln 2 in two parts: the first product is exact
  r = std::fma(n, -0x1.7f7d1cp-20f, r);
  float p = 0x1.6850e4p-10f;
  p = std::fma(p, r, 0x1.123bccp-7f);
  p = std::fma(p, r, 0x1.555b98p-5f);
  p = std::fma(p, r, 0x1.55548ep-3f);
  p = std::fma(p, r, 0x1.fffff8p-2f);
  p = std::fma(p, r, 1.0f);
  p = std::fma(p, r, 1.0f);
  const int32_t exponent = std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kRound);
  const int32_t half = exponent >> 1;
  const float a = std::bit_cast<float>((half + 127) << 23);
  const float b = std::bit_cast<float>((exponent - half + 127) << 23);
  return p * a * b;
}
inline double Exp(double x) { return std::exp(x); }

template <class T>
inline T Sigmoid(T x) {
  return T(1) / (T(1) + Exp(-x));
}

template <class T>
inline T Silu(T x) {
  return x / (T(1) + Exp(-x));
}

// log(1 + e) for 0 <= e <= 1, accurate relative to the result: 2 atanh(e / (2 + e)).
inline float Log1pUnit(float e) {
  const float s = e / (2.0f + e), z = s * s;
  float p = 2.0f / 15;
  p = std::fma(p, z, 2.0f / 13);
  p = std::fma(p, z, 2.0f / 11);
  p = std::fma(p, z, 2.0f / 9);
  p = std::fma(p, z, 2.0f / 7);
  p = std::fma(p, z, 2.0f / 5);
  p = std::fma(p, z, 2.0f / 3);
  p = std::fma(p, z, 2.0f);
  return p * s;
}
inline double Log1pUnit(double e) { return std::log1p(e); }

// log(1 + exp(x)), and x itself above 20, as the linear mixers' gates define it.
template <class T>
inline T SoftPlus(T x) {
  const T magnitude = x < T(0) ? -x : x;
  const T positive = x > T(0) ? x : T(0);
  const T smooth = positive + Log1pUnit(Exp(-magnitude));
  return x > T(20) ? x : smooth;
}

// log(sigmoid(x)) = min(x, 0) - log(1 + exp(-|x|)).
template <class T>
inline T LogSigmoid(T x) {
  const T magnitude = x < T(0) ? -x : x;
  const T negative = x < T(0) ? x : T(0);
  return negative - Log1pUnit(Exp(-magnitude));
}

}  // namespace lt2::cpu
