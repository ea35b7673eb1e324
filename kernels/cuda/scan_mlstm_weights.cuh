// The mLSTM's gates in a chunk, as what RowWeights has for a decay.
//
// With B the cumulative log-forget inside the chunk, x_j = i_j - B_j, and M_r the largest of the
// entry's m and x_0 … x_r, the frame of row r is m_r = B_r + M_r, and
//   from_start = exp(m_in - M_r)    to_end = exp(x_j + B_C - m_out)
//   whole = exp(m_in + B_C - m_out)    between rows  exp(x_j - M_r)
// where m_out is m_C rounded to float, so that a stored m labels its state exactly.
#pragma once

#include "kernels/cuda/scan_chunk.cuh"

namespace lt2::cuda {

struct MlstmGates {
  const float *i_NH, *f_NH, *maxes_CH;
};

struct MlstmWeights : RowWeights {
  float floor[kPanel];  // exp(-m_r)
  float out;            // m_out

  // i and f: a head's gates, `stride` apart. Rows past the chunk's end neither forget nor write.
  // Work of the first warp alone.
  template <class T>
  __device__ void Load(const float* i, const float* f, int64_t stride, int rows, float m_in) {
    if (threadIdx.x >= 32) return;
    const int row = 2 * threadIdx.x;
    double sum[2], x[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] = row + r < rows ? double{LogSigmoid(f[(row + r) * stride])} : 0;
    }
    SumRows(sum);
#pragma unroll
    for (int r = 0; r < 2; ++r) x[r] = row + r < rows ? i[(row + r) * stride] - sum[r] : -INFINITY;
    double through = fmax(x[0], x[1]);
#pragma unroll
    for (int back = 1; back < 32; back *= 2) {
      const double before = __shfl_up_sync(~0u, through, back);
      if (threadIdx.x >= back) through = fmax(through, before);
    }
    const double shifted = __shfl_up_sync(~0u, through, 1);
    const double before = threadIdx.x > 0 ? fmax(double{m_in}, shifted) : double{m_in};
    const double top[2] = {fmax(before, x[0]), fmax(double{m_in}, through)};
    const double total = __shfl_sync(~0u, sum[1], 31), most = __shfl_sync(~0u, top[1], 31);
    const auto m_out = static_cast<float>(total + most);
    const double shift = total - m_out;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      of_row[row + r] = -top[r];
      of_column[row + r] = -x[r];
      from_start[row + r] = ExpOf<T>(static_cast<float>(m_in - top[r]));
      to_end[row + r] = ExpOf<T>(static_cast<float>(x[r] + shift));
      floor[row + r] = ExpOf<T>(static_cast<float>(-(sum[r] + top[r])));
    }
    if (threadIdx.x > 0) return;
    whole = ExpOf<T>(static_cast<float>(m_in + shift));
    out = m_out;
  }
};

}  // namespace lt2::cuda
