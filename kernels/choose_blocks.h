// The choice that select_blocks.h defines, for one query of one group of heads: the one function
// that training, decoding and the reference call.
//
// Every number is made in double by additions and fused multiply-adds in a fixed order, the
// exponential too: neither the compiler's contractions, nor the library, nor how heads fill vectors
// can turn a choice.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "kernels/fused_dots.h"
#include "kernels/select_blocks.h"

namespace lt2 {

// q [heads, D], means k [.., D] of its document's blocks, `stride` elements apart, and the query's
// position.
template <class T>
struct BlockQuery {
  const T *q, *k;
  int64_t heads, D, stride, position;
};

// exp(x) for x <= 0 within an ulp or so, 0 below -700: 2^n times the series of the rest, |r| <=
// ln(2) / 2.
LT2_HOST_DEVICE inline double ExpOfNegative(double x) {
  constexpr double kRound = 0x1.8p52;  // adding it leaves the nearest integer in the low bits
  const double clamped = std::max(x, -700.0);
  const double shifted = std::fma(clamped, 0x1.71547652b82fep+0, kRound);
  const double n = shifted - kRound;
  double r = std::fma(n, -0x1.62e42fefa39efp-1, clamped);  // ln 2 in two parts
  r = std::fma(n, -0x1.abc9e3b39803fp-56, r);
  double p = 1.0 / 479001600;
  for (const double term : {1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040,
                            1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 1.0 / 2, 1.0, 1.0}) {
    p = std::fma(p, r, term);
  }
  const int64_t exponent = std::bit_cast<int64_t>(shifted) - std::bit_cast<int64_t>(kRound);
  const double power = std::bit_cast<double>((exponent + 1023) << 52);
  return x < -700.0 ? 0.0 : p * power;
}

// score_c for c < ⌊position/ℓ⌋.
template <class T>
std::vector<double> BlockScores(const BlockQuery<T>& in, const SelectBlocksOptions& options) {
  constexpr int64_t kLanes = 8;  // heads side by side; those that fill up have q = 0 and count not
  const int64_t current = in.position / options.block;
  const int64_t visible = (in.position + 1) / options.block;
  const int64_t lanes = (in.heads + kLanes - 1) / kLanes * kLanes;
  thread_local std::vector<double> qT, s, largest, sum;
  qT.assign(in.D * lanes, 0.0);
  s.resize(visible * lanes);
  largest.assign(lanes, -INFINITY);
  sum.assign(lanes, 0.0);
  for (int64_t h = 0; h < in.heads; ++h) {
    for (int64_t d = 0; d < in.D; ++d) qT[d * lanes + h] = options.scale * in.q[h * in.D + d];
  }
  for (int64_t c = 0; c < visible; ++c) {
    const T* k = in.k + c * in.stride;
    for (int64_t first = 0; first < lanes; first += kLanes) {
      FusedDots<kLanes>(k, 1, in.D, qT.data() + first, lanes, s.data() + c * lanes + first);
    }
  }
  double *p = s.data(), *m = largest.data(), *l = sum.data();
  for (int64_t c = 0; c < visible; ++c) {
#pragma omp simd
    for (int64_t h = 0; h < lanes; ++h) m[h] = p[c * lanes + h] > m[h] ? p[c * lanes + h] : m[h];
  }
  for (int64_t c = 0; c < visible; ++c) {
#pragma omp simd
    for (int64_t h = 0; h < lanes; ++h) {
      p[c * lanes + h] = ExpOfNegative(p[c * lanes + h] - m[h]);
      l[h] += p[c * lanes + h];
    }
  }
  std::vector<double> scores(current, 0.0);
  for (int64_t c = 0; c < current; ++c) {
    for (int64_t h = 0; h < in.heads; ++h) scores[c] += p[c * lanes + h] / l[h];
  }
  return scores;
}

// Writes the list of one query.
template <class T>
void ChooseBlocks(const BlockQuery<T>& in, const SelectBlocksOptions& options, int32_t* blocks) {
  const int64_t current = in.position / options.block;
  std::vector<int32_t> chosen(current + 1);
  std::iota(chosen.begin(), chosen.end(), 0);
  if (current + 1 > options.selected) {
    std::vector<double> scores = BlockScores(in, options);
    for (double& score : scores) {
      if (!(score >= 0)) score = -1;  // NaN has no place in an order
    }
    scores.push_back(0);
    for (int64_t c : {int64_t{0}, current - 1, current}) scores[c] = INFINITY;
    const auto before = [&](int32_t a, int32_t b) {
      return scores[a] > scores[b] || (scores[a] == scores[b] && a < b);
    };
    std::nth_element(chosen.begin(), chosen.begin() + options.selected, chosen.end(), before);
    chosen.resize(options.selected);
    std::sort(chosen.begin(), chosen.end());
  }
  std::fill(std::copy(chosen.begin(), chosen.end(), blocks), blocks + options.selected, -1);
}

}  // namespace lt2
