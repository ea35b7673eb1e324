// Row-major general matrix product through CBLAS, for float and double alike.
//
// OpenBLAS's own threading gives other bits for other numbers of threads, so each call of it runs
// on one thread, and Gemm spreads fixed blocks of C over threads instead.
#pragma once

#include <cblas.h>
#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/check.h"

namespace lt2::cpu {

// Makes OpenBLAS (the OpenMP build asks omp_get_max_threads) use the calling thread alone.
class OneThread {
 public:
  OneThread() : threads_(omp_get_max_threads()) {
    if (threads_ > 1) omp_set_num_threads(1);
  }
  ~OneThread() {
    if (threads_ > 1) omp_set_num_threads(threads_);
  }

 private:
  int threads_;
};

// One CBLAS call on the calling thread; arguments as for Gemm.
template <class T>
void SerialGemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda,
                const T* b, int64_t ldb, T beta, T* c, int64_t ldc) {
  constexpr int64_t kMax = std::numeric_limits<int>::max();  // CBLAS counts in int
  CHECK(std::max({m, n, k, lda, ldb, ldc}) <= kMax) << "Gemm " << m << " x " << n << " x " << k;
  const auto trans_a = ta ? CblasTrans : CblasNoTrans, trans_b = tb ? CblasTrans : CblasNoTrans;
  const auto i = [](int64_t v) { return static_cast<int>(v); };
  OneThread one_thread;
  if constexpr (sizeof(T) == 4) {
    cblas_sgemm(CblasRowMajor, trans_a, trans_b, i(m), i(n), i(k), alpha, a, i(lda), b, i(ldb),
                beta, c, i(ldc));
  } else {
    cblas_dgemm(CblasRowMajor, trans_a, trans_b, i(m), i(n), i(k), alpha, a, i(lda), b, i(ldb),
                beta, c, i(ldc));
  }
}

// C [m, n] = alpha op(A) op(B) + beta C with op(A) [m, k], op(B) [k, n]; ta, tb transpose what is
// stored. lda, ldb, ldc are the distances between stored rows. With beta = 0, C is only written.
// The same bits for every number of threads; inside a parallel region it runs on the caller's.
template <class T>
void Gemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda,
          const T* b, int64_t ldb, T beta, T* c, int64_t ldc) {
  if (m == 0 || n == 0) return;
  // Blocks of the longer side of C: each reads all of the other operand, so they are 64 to 128 long
  // (longer beyond 16 of them), and even in number.
  const bool by_rows = m >= n;
  const int64_t side = by_rows ? m : n;
  const int64_t wanted = side <= 64 ? 1 : std::min<int64_t>(16, 2 * ((side + 255) / 256));
  const int64_t block = ((side + wanted - 1) / wanted + 15) / 16 * 16;
  const int64_t blocks = (side + block - 1) / block;
  constexpr double kThreadingPays = 1e6;  // multiply-adds: about 15 microseconds of one core
#pragma omp parallel for schedule(static) if (double(m) * n * k > kThreadingPays && blocks > 1)
  for (int64_t i = 0; i < blocks; ++i) {
    const int64_t begin = i * block, size = std::min(block, side - begin);
    if (by_rows) {
      SerialGemm(ta, tb, size, n, k, alpha, a + begin * (ta ? 1 : lda), lda, b, ldb, beta,
                 c + begin * ldc, ldc);
    } else {
      SerialGemm(ta, tb, m, size, k, alpha, a, lda, b + begin * (tb ? ldb : 1), ldb, beta,
                 c + begin, ldc);
    }
  }
}

}  // namespace lt2::cpu
