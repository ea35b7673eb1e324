// Moving a chunk's rows between [N, heads, width] tensors and padded scratch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/tensor.h"
#include "kernels/cpu/micro_gemm.h"
#include "kernels/documents.h"

namespace lt2::cpu {

// Rows of scratch come in blocks of this many; rows past the chunk's are zero.
inline constexpr int64_t kBlock = 16;

struct ChunkRows {
  int64_t document, token, rows;
  int64_t padded;  // rows rounded up to whole blocks
};

inline ChunkRows RowsOfChunk(const Documents& documents, int64_t chunk) {
  const int32_t* entry = documents.chunks().data<int32_t>() + 3 * chunk;
  return {.document = entry[0],
          .token = entry[1],
          .rows = entry[2],
          .padded = (entry[2] + kBlock - 1) / kBlock * kBlock};
}

// Where `head`'s row of the first token lies in x [tokens, heads, width]; null if x is undefined.
template <class T>
T* HeadRows(const Tensor& x, int64_t token, int64_t head) {
  if (!x.defined()) return nullptr;
  const int64_t width = x.shape().rank() == 3 ? x.dim(2) : 1;
  return x.data<T>() + (token * x.dim(1) + head) * width;
}

// to = from. A row is too short for the library's copy to pay.
template <class T>
inline void CopyRow(const T* from, int64_t n, T* to) {
  using V = typename MicroVector<T>::Type;
  int64_t i = 0;
  for (; i + kMicroLanes<T> <= n; i += kMicroLanes<T>) {
    *reinterpret_cast<V*>(to + i) = *reinterpret_cast<const V*>(from + i);
  }
  for (; i < n; ++i) to[i] = from[i];
}

// to [padded, ld] = from [rows, width] (stride apart), zero elsewhere. from null: all zero.
template <class T>
void LoadRows(const T* from, int64_t stride, int64_t rows, int64_t width, int64_t padded,
              int64_t ld, T* to) {
  if (from == nullptr) rows = 0;
  for (int64_t r = 0; r < rows; ++r, from += stride, to += ld) {
    CopyRow(from, width, to);
    for (int64_t i = width; i < ld; ++i) to[i] = 0;
  }
  std::fill(to, to + (padded - rows) * ld, T(0));
}

// to [rows, width] (stride apart) = or += from [rows, ld].
template <class T>
void StoreRows(const T* from, int64_t ld, int64_t rows, int64_t width, T* to, int64_t stride,
               bool accumulate = false) {
  for (int64_t r = 0; r < rows; ++r, from += ld, to += stride) {
    if (accumulate) {
#pragma omp simd
      for (int64_t i = 0; i < width; ++i) to[i] += from[i];
    } else {
      CopyRow(from, width, to);
    }
  }
}

// to [r] = factor[r] * from [r], row by row; they may be the same.
template <class T>
void ScaleRows(const T* factor, const T* from, int64_t rows, int64_t ld, T* to) {
  for (int64_t r = 0; r < rows; ++r) {
    const T f = factor[r];
#pragma omp simd
    for (int64_t i = 0; i < ld; ++i) to[r * ld + i] = f * from[r * ld + i];
  }
}

template <class T>
void Scale(T factor, int64_t n, T* x) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) x[i] *= factor;
}

template <class T>
T Dot(const T* a, const T* b, int64_t n) {
  T sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace lt2::cpu
