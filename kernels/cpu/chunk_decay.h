// One log-decay per row of a chunk, and the factors that follow from it.
#pragma once

#include <algorithm>

#include "kernels/cpu/scan_rows.h"
#include "kernels/cpu/simd.h"

namespace lt2::cpu {

// exp(g) of each of a token's key channels: g one number, g_K one a channel, each null for no decay
// of that kind.
template <class T>
void Decays(const T* g, const T* g_K, int64_t width, T* decay) {
  std::fill(decay, decay + width, g != nullptr ? Exp(*g) : T(1));
  for (int64_t d = 0; d < width && g_K != nullptr; ++d) decay[d] = Exp(g_K[d]);
}

// Rows past the chunk's end do not decay.
template <class T>
struct ChunkDecay {
  double sum[kChunk];    // G_r, in double: differences of large sums stay exact
  T from_start[kChunk];  // exp(G_r)
  T to_end[kChunk];      // exp(G_C - G_r)
  T whole;               // exp(G_C)
  bool decays;

  // g: a head's log-decays, stride apart; null: `constant` for every row.
  void Load(const T* g, int64_t stride, double constant, const ChunkRows& rows) {
    decays = g != nullptr || constant != 0;
    double total = 0;
    for (int64_t r = 0; r < rows.padded; ++r) {
      if (r < rows.rows) total += g != nullptr ? static_cast<double>(g[r * stride]) : constant;
      sum[r] = total;
    }
    for (int64_t r = 0; r < rows.padded; ++r) {
      from_start[r] = decays ? Exp(static_cast<T>(sum[r])) : T(1);
      to_end[r] = decays ? Exp(static_cast<T>(total - sum[r])) : T(1);
    }
    whole = from_start[rows.padded - 1];
  }

  // D_rj = exp(G_r - G_j) for j <= r, zero above the diagonal, up to whole blocks; stride kChunk.
  // Only exponents <= 0 are ever taken.
  void Pairs(int64_t padded, T* d) const {
    for (int64_t r = 0; r < padded; ++r) {
      const int64_t end = r / kBlock * kBlock + kBlock;
      T* d_r = d + r * kChunk;
      if (!decays) {
        std::fill(d_r, d_r + r + 1, T(1));
        std::fill(d_r + r + 1, d_r + end, T(0));
        continue;
      }
#pragma omp simd
      for (int64_t j = 0; j < end; ++j) {
        const T exponent = static_cast<T>(j <= r ? sum[r] - sum[j] : 0.0);
        const T value = Exp(exponent);
        d_r[j] = j <= r ? value : T(0);
      }
    }
  }
};

}  // namespace lt2::cpu
