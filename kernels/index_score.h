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

#include "kernels/fused_dots.h"

namespace lt2 {

// sum_i += w max(r_i, 0), or w r_i where nothing is cut off.
template <int kLanes>
LT2_HOST_DEVICE inline void AddIndexTerm(double w, bool cut, const double* r, double* sum) {
#pragma omp simd
  for (int i = 0; i < kLanes; ++i) {
    const double term = cut && r[i] < 0 ? 0 : r[i];
    sum[i] = std::fma(w, term, sum[i]);
  }
}

// score [kLanes] of keys whose channel d is row d of kT [D, kLanes]; r [H, kLanes] is what it is
// made of. w_H may be null: the mean over heads.
template <int kLanes, class T>
inline void IndexScores(const T* q_HD, const T* w_H, int64_t H, int64_t D, const double* kT,
                        double* r, double* score) {
  double sum[kLanes] = {};
  for (int64_t h = 0; h < H; ++h, r += kLanes) {
    FusedDots<kLanes>(q_HD + h * D, 1, D, kT, kLanes, r);
    const double w = w_H ? static_cast<double>(w_H[h]) : 1 / static_cast<double>(H);
    AddIndexTerm<kLanes>(w, w_H != nullptr, r, sum);
  }
  std::copy(sum, sum + kLanes, score);
}

}  // namespace lt2
