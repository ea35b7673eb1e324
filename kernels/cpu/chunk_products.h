// Products of a chunk's matrices, whole and lower triangular.
#pragma once

#include "kernels/cpu/micro_gemm.h"
#include "kernels/cpu/scan_rows.h"

namespace lt2::cpu {

// c [m, n] (+)= a [m, depth] b [depth, n]; n is padded to whole vectors.
template <bool kAdd, class T>
inline void Product(int64_t m, int64_t n, int64_t depth, const T* a, int64_t lda, const T* b,
                    int64_t ldb, T* c, int64_t ldc) {
  MicroGemm<kAdd>(MicroGemmArgs<T>{m, n, depth, a, lda, 1, b, ldb, c, ldc});
}
// The same with a stored [depth, m].
template <bool kAdd, class T>
inline void ProductTransposed(int64_t m, int64_t n, int64_t depth, const T* a, int64_t lda,
                              const T* b, int64_t ldb, T* c, int64_t ldc) {
  MicroGemm<kAdd>(MicroGemmArgs<T>{m, n, depth, a, 1, lda, b, ldb, c, ldc});
}

// Lower triangles (diagonal included, up to whole blocks) of [padded, padded] matrices of stride
// kChunk: c = a b with b [depth, padded]; c (+)= a b; c += a^T b.
template <class T>
void LowerOf(int64_t padded, int64_t depth, const T* a, int64_t lda, const T* b, T* c) {
  for (int64_t i = 0; i < padded; i += kBlock) {
    Product<false>(kBlock, i + kBlock, depth, a + i * lda, lda, b, kChunk, c + i * kChunk, kChunk);
  }
}
template <bool kAdd, class T>
void LowerTimes(int64_t padded, int64_t n, const T* a, const T* b, int64_t ldb, T* c) {
  for (int64_t i = 0; i < padded; i += kBlock) {
    Product<kAdd>(kBlock, n, i + kBlock, a + i * kChunk, kChunk, b, ldb, c + i * ldb, ldb);
  }
}
template <class T>
void AddLowerTransposedTimes(int64_t padded, int64_t n, const T* a, const T* b, int64_t ldb, T* c) {
  for (int64_t j = 0; j < padded; j += kBlock) {
    ProductTransposed<true>(kBlock, n, padded - j, a + j * kChunk + j, kChunk, b + j * ldb, ldb,
                            c + j * ldb, ldb);
  }
}

}  // namespace lt2::cpu
