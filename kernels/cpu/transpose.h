// Transposes small matrices in registers.
#pragma once

#include <cstdint>
#include <utility>

#include "kernels/cpu/micro_gemm.h"

namespace lt2::cpu {

// a0 b0 a1 b1 … from the first (kHigh: second) halves of a and b.
template <class T, bool kHigh, size_t... kIndex>
inline typename MicroVector<T>::Type Interleave(const typename MicroVector<T>::Type& a,
                                                const typename MicroVector<T>::Type& b,
                                                std::index_sequence<kIndex...>) {
  constexpr int kWidth = kMicroLanes<T>;
  return __builtin_shufflevector(
      a, b, ((kIndex % 2) * kWidth + kIndex / 2 + (kHigh ? kWidth / 2 : 0))...);
}

// One square of kMicroLanes: interleaving row i with row i + kMicroLanes / 2, log2(kMicroLanes)
// times over.
template <class T>
inline void TransposeSquare(const T* __restrict from, int64_t ld_from, T* __restrict to,
                            int64_t ld_to) {
  using V = typename MicroVector<T>::Type;
  constexpr int kWidth = kMicroLanes<T>;
  constexpr auto kIndices = std::make_index_sequence<kWidth>();
  V rows[kWidth], next[kWidth];
#pragma GCC unroll 16
  for (int i = 0; i < kWidth; ++i) rows[i] = *reinterpret_cast<const V*>(from + i * ld_from);
#pragma GCC unroll 4
  for (int stage = 1; stage < kWidth; stage *= 2) {
#pragma GCC unroll 16
    for (int i = 0; i < kWidth / 2; ++i) {
      next[2 * i] = Interleave<T, false>(rows[i], rows[i + kWidth / 2], kIndices);
      next[2 * i + 1] = Interleave<T, true>(rows[i], rows[i + kWidth / 2], kIndices);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kWidth; ++i) rows[i] = next[i];
  }
#pragma GCC unroll 16
  for (int i = 0; i < kWidth; ++i) *reinterpret_cast<V*>(to + i * ld_to) = rows[i];
}

// to [columns, rows] = from [rows, columns]^T. Both extents are multiples of kMicroLanes<T>.
template <class T>
void Transpose(int64_t rows, int64_t columns, const T* from, int64_t ld_from, T* to,
               int64_t ld_to) {
  for (int64_t i = 0; i < rows; i += kMicroLanes<T>) {
    for (int64_t j = 0; j < columns; j += kMicroLanes<T>) {
      TransposeSquare(from + i * ld_from + j, ld_from, to + j * ld_to + i, ld_to);
    }
  }
}

}  // namespace lt2::cpu
