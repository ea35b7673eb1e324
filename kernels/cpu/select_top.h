// The k largest of n scores.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>

namespace lt2::cpu {

// Their positions in ascending order, then -1 up to k. Of equal scores the lower position comes
// first; a NaN is the least of all. Overwrites score; work has n elements.
inline void SelectTop(double* score, int64_t n, int64_t k, double* work, int32_t* to) {
  int32_t* const end = to + k;
  if (n <= k) {
    for (int64_t i = 0; i < n; ++i) *to++ = static_cast<int32_t>(i);
    std::fill(to, end, -1);
    return;
  }
  for (int64_t i = 0; i < n; ++i) work[i] = score[i] = std::isnan(score[i]) ? -INFINITY : score[i];
  std::nth_element(work, work + k - 1, work + n, std::greater<>());
  const double least = work[k - 1];
  int64_t equal = k;  // how many that are just as good as the last are taken
  for (int64_t i = 0; i < n; ++i) equal -= score[i] > least;
  for (int64_t i = 0; to < end; ++i) {
    if (score[i] > least || (score[i] == least && equal-- > 0)) *to++ = static_cast<int32_t>(i);
  }
}

}  // namespace lt2::cpu
