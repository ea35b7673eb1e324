// Maximum and sum of exponentials along one row.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/simd.h"

namespace lt2::cpu {

template <class T>
inline T RowMax(const T* row, int64_t n) {
  constexpr int64_t kWide = 32;  // independent maxima, which vectorise without reordering rules
  T largest[kWide];
  std::fill(largest, largest + kWide, row[0]);
  int64_t i = 0;
  for (; i + kWide <= n; i += kWide) {
#pragma omp simd
    for (int64_t l = 0; l < kWide; ++l)
      largest[l] = row[i + l] > largest[l] ? row[i + l] : largest[l];
  }
  T result = *std::max_element(largest, largest + kWide);
  for (; i < n; ++i) result = std::max(result, row[i]);
  return result;
}

// sum exp((row_i - shift) inverse_temperature); with kWrite the exponentials replace the row. Long
// sums are kept in double.
template <bool kWrite, class T>
inline double RowSumExp(std::conditional_t<kWrite, T, const T>* row, int64_t n, T shift,
                        T inverse_temperature = 1) {
  constexpr int64_t kBlock = 2048;
  double total = 0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = std::min(n, begin + kBlock);
    T sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = begin; i < end; ++i) {
      const T e = Exp((row[i] - shift) * inverse_temperature);
      if constexpr (kWrite) row[i] = e;
      sum += e;
    }
    total += sum;
  }
  return total;
}

}  // namespace lt2::cpu
