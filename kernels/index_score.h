// The score by which the lightning indexer ranks keys: one definition for training, decoding and
// the reference, so that all of them choose the same keys to the last bit.
//
//   r_h = q_h · k,  score = sum_h w_h max(r_h, 0),  or the mean of r_h where there are no weights
//
// In double (keys are converted once, not for every query), channels in order, then heads in order,
// every product fused with its sum. What varies is only how many keys are scored at a time.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace lt2 {

// r_i of kLanes keys, whose channel d is row d of kT [D, kLanes]. Not inlined: on its own the
// compiler keeps the sums in registers, which is half as fast again.
template <int kLanes, class T>
[[gnu::noinline]] void IndexDots(const T* q_D, int64_t D, const double* kT, double* r) {
  double sum[kLanes] = {};
  for (int64_t d = 0; d < D; ++d, kT += kLanes) {
    const double q = q_D[d];
#pragma omp simd
    for (int i = 0; i < kLanes; ++i) sum[i] = std::fma(q, kT[i], sum[i]);
  }
  std::copy(sum, sum + kLanes, r);
}

// score [kLanes]; r [H, kLanes] is what it is made of. w_H may be null: the mean over heads.
template <int kLanes, class T>
inline void IndexScores(const T* q_HD, const T* w_H, int64_t H, int64_t D, const double* kT,
                        double* r, double* score) {
  double sum[kLanes] = {};
  for (int64_t h = 0; h < H; ++h, r += kLanes) {
    IndexDots<kLanes>(q_HD + h * D, D, kT, r);
    const double w = w_H ? static_cast<double>(w_H[h]) : 1 / static_cast<double>(H);
#pragma omp simd
    for (int i = 0; i < kLanes; ++i) {
      const double term = w_H && r[i] < 0 ? 0 : r[i];
      sum[i] = std::fma(w, term, sum[i]);
    }
  }
  std::copy(sum, sum + kLanes, score);
}

}  // namespace lt2
