// Small dense products for tiles that live in the first-level cache, where a BLAS call's packing
// and dispatch would cost as much as the product.
//
// C [rows, lanes] (+)= A [rows, inner] B [inner, lanes]. A is read one element at a time through
// two strides, so either operand order and any transposition of A is free; B and C are rows of
// lanes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace lt2::cpu {

#ifdef __AVX512F__
inline constexpr int kMicroBytes = 64;
inline constexpr int kMicroSums = 24;  // of 32 registers
#else
inline constexpr int kMicroBytes = 32;
inline constexpr int kMicroSums = 12;  // of 16 registers
#endif

template <class T>
inline constexpr int64_t kMicroLanes = kMicroBytes / sizeof(T);

// `n` rounded up to whole vectors.
template <class T>
constexpr int64_t PadToLanes(int64_t n) {
  return (n + kMicroLanes<T> - 1) / kMicroLanes<T> * kMicroLanes<T>;
}

// A vector that may start at any element.
template <class T>
struct MicroVector {
  typedef T Type __attribute__((vector_size(kMicroBytes), aligned(sizeof(T)), may_alias));
};

template <class T>
struct MicroGemmArgs {
  int64_t rows, lanes, inner;
  const T* a;
  int64_t a_row, a_inner;  // element (r, i) is a[r * a_row + i * a_inner]
  const T* b;              // every row readable up to PadToLanes(lanes)
  int64_t ldb;
  T* c;  // exactly `lanes` of each row are written
  int64_t ldc;
};

// kRows rows of kVectors vectors; the last vector keeps only `tail` lanes if tail > 0.
template <class T, int kRows, int kVectors, bool kAdd>
inline void MicroTile(const MicroGemmArgs<T>& g, int64_t row, int64_t lane, int64_t tail) {
  using V = typename MicroVector<T>::Type;
  V sum[kRows][kVectors] = {};
  const T* a = g.a + row * g.a_row;
  const T* b = g.b + lane;
  for (int64_t i = 0; i < g.inner; ++i, a += g.a_inner, b += g.ldb) {
    V b_i[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      b_i[v] = *reinterpret_cast<const V*>(b + v * kMicroLanes<T>);
    }
#pragma GCC unroll 24
    for (int r = 0; r < kRows; ++r) {
      const T a_ri = a[r * g.a_row];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] += a_ri * b_i[v];
    }
  }
  T* c = g.c + row * g.ldc + lane;
  if (tail > 0) {
    for (int r = 0; r < kRows; ++r, c += g.ldc) {
      T last[kMicroLanes<T>];
      std::memcpy(last, &sum[r][0], sizeof(last));
      for (int64_t l = 0; l < tail; ++l) c[l] = kAdd ? c[l] + last[l] : last[l];
    }
    return;
  }
#pragma GCC unroll 24
  for (int r = 0; r < kRows; ++r, c += g.ldc) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      V* c_rv = reinterpret_cast<V*>(c + v * kMicroLanes<T>);
      if constexpr (kAdd) {
        *c_rv += sum[r][v];
      } else {
        *c_rv = sum[r][v];
      }
    }
  }
}

// All rows of one panel of lanes.
template <class T, int kVectors, bool kAdd>
void MicroPanel(const MicroGemmArgs<T>& g, int64_t lane, int64_t tail) {
  constexpr int kRows = std::min(kMicroSums / kVectors, 12);
  int64_t row = 0;
  for (; row + kRows <= g.rows; row += kRows) {
    MicroTile<T, kRows, kVectors, kAdd>(g, row, lane, tail);
  }
  if constexpr (kRows > 4) {
    for (; row + 4 <= g.rows; row += 4) MicroTile<T, 4, kVectors, kAdd>(g, row, lane, tail);
  }
  if constexpr (kRows > 2) {
    for (; row + 2 <= g.rows; row += 2) MicroTile<T, 2, kVectors, kAdd>(g, row, lane, tail);
  }
  for (; row < g.rows; ++row) MicroTile<T, 1, kVectors, kAdd>(g, row, lane, tail);
}

template <bool kAdd, class T>
void MicroGemm(const MicroGemmArgs<T>& g) {
  constexpr int64_t kWidth = kMicroLanes<T>;
  const int64_t whole = g.lanes / kWidth;
  int64_t v = 0;
  for (; v + 4 <= whole; v += 4) MicroPanel<T, 4, kAdd>(g, v * kWidth, 0);
  switch (whole - v) {
    case 3:
      MicroPanel<T, 3, kAdd>(g, v * kWidth, 0);
      break;
    case 2:
      MicroPanel<T, 2, kAdd>(g, v * kWidth, 0);
      break;
    case 1:
      MicroPanel<T, 1, kAdd>(g, v * kWidth, 0);
      break;
    default:
      break;
  }
  if (g.lanes % kWidth) MicroPanel<T, 1, kAdd>(g, whole * kWidth, g.lanes % kWidth);
}

}  // namespace lt2::cpu
