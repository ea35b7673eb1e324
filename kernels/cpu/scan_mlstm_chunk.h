// One chunk of the mLSTM.
//
// With B the cumulative log-forget inside the chunk, x_j = i_j - B_j, and M_r the largest of the
// entry's m and x_0 … x_r, the frame of row r is m_r = B_r + M_r, and
//   [num, den]_r = scale exp(m_in - M_r) S_in^T q_r + sum_j A_rj [v_j, 1]
//   A_rj         = scale <q_r, k_j> exp(x_j - M_r), j <= r
//   S_out        = exp(m_in + B_C - m_out) S_in + sum_j exp(x_j + B_C - m_out) k_j [v_j, 1]^T
// where m_out is m_C rounded to the tensors' type, so that a stored m labels its state exactly.
#pragma once

#include <limits>

#include "kernels/cpu/chunk_products.h"
#include "kernels/cpu/scan_rows.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/transpose.h"

namespace lt2::cpu {

template <class T>
struct MlstmGates {
  double x[kChunk], top[kChunk];  // x_j and M_r, in double: differences of large sums stay exact
  T read[kChunk];                 // exp(m_in - M_r)
  T write[kChunk];                // exp(x_j + B_C - m_out)
  T floor[kChunk];                // exp(-m_r)
  T keep;                         // exp(m_in + B_C - m_out)
  T out;                          // m_out

  // A head's gates, stride apart. Rows past the chunk's end neither forget nor write.
  void Load(const T* i, const T* f, int64_t stride, const ChunkRows& rows, T m_in) {
    double sum = 0, largest = m_in;
    for (int64_t r = 0; r < rows.padded; ++r) {
      const bool inside = r < rows.rows;
      if (inside) sum += LogSigmoid(f[r * stride]);
      x[r] = inside ? i[r * stride] - sum : -std::numeric_limits<double>::infinity();
      largest = std::max(largest, x[r]);
      top[r] = largest;
      floor[r] = static_cast<T>(-(sum + largest));
    }
    out = static_cast<T>(sum + largest);
    const double shift = sum - out;
    keep = Exp(static_cast<T>(m_in + shift));
#pragma omp simd
    for (int64_t r = 0; r < rows.padded; ++r) {
      floor[r] = Exp(floor[r]);
      read[r] = Exp(static_cast<T>(m_in - top[r]));
      write[r] = Exp(static_cast<T>(x[r] + shift));
    }
  }

  // scale exp(x_j - M_r), zero above the diagonal, up to whole blocks.
  void Pairs(T scale, int64_t padded, T* w) const {
    for (int64_t r = 0; r < padded; ++r) {
      const int64_t end = r / kBlock * kBlock + kBlock;
      T* w_r = w + r * kChunk;
#pragma omp simd
      for (int64_t j = 0; j < end; ++j) {
        const T exponent = static_cast<T>(j <= r ? x[j] - top[r] : 0.0);
        const T value = scale * Exp(exponent);
        w_r[j] = j <= r ? value : T(0);
      }
    }
  }
};

template <class T>
class MlstmChunk {
 public:
  MlstmChunk(Scratch& scratch, int64_t key_width, int64_t value_width)
      : k_width(key_width),
        v_width(value_width),
        ld_k(PadToLanes<T>(key_width)),
        ld_w(PadToLanes<T>(value_width + 1)),
        q(scratch.Take<T>(kChunk * ld_k)),
        k(scratch.Take<T>(kChunk * ld_k)),
        v(scratch.Take<T>(kChunk * ld_w)),
        q_read(scratch.Take<T>(kChunk * ld_k)),
        k_write(scratch.Take<T>(kChunk * ld_k)),
        weight(scratch.Take<T>(kChunk * kChunk)),
        attention(scratch.Take<T>(kChunk * kChunk)),
        k_t_(scratch.Take<T>(ld_k * kChunk)) {}

  // From Args of either pass. m_in: of the state the chunk begins with.
  template <class Args>
  void Load(const Args& a, const ChunkRows& at, int64_t head, T m_in) {
    const int64_t heads = a.q_NHK.dim(1), k_stride = heads * k_width, n = at.padded;
    rows = at;
    LoadRows(HeadRows<T>(a.q_NHK, at.token, head), k_stride, at.rows, k_width, n, ld_k, q);
    LoadRows(HeadRows<T>(a.k_NHK, at.token, head), k_stride, at.rows, k_width, n, ld_k, k);
    LoadRows(HeadRows<T>(a.v_NHV, at.token, head), heads * v_width, at.rows, v_width, n, ld_w, v);
    for (int64_t r = 0; r < at.rows; ++r) v[r * ld_w + v_width] = 1;
    gates.Load(HeadRows<T>(a.i_NH, at.token, head), HeadRows<T>(a.f_NH, at.token, head), heads, at,
               m_in);
    const T scale = static_cast<T>(a.scale);
    T read[kChunk];
    for (int64_t r = 0; r < n; ++r) read[r] = scale * gates.read[r];
    ScaleRows(read, q, n, ld_k, q_read);
    ScaleRows(gates.write, k, n, ld_k, k_write);
    gates.Pairs(scale, n, weight);
    for (int64_t r = 0; r < n; r += kMicroLanes<T>) {
      Transpose(kMicroLanes<T>, ld_k, k + r * ld_k, ld_k, k_t_ + r, kChunk);
    }
    LowerOf(n, k_width, q, ld_k, k_t_, attention);
    for (int64_t r = 0; r < n; ++r) {
      const int64_t end = r / kBlock * kBlock + kBlock;
      T* a_r = attention + r * kChunk;
      const T* w_r = weight + r * kChunk;
#pragma omp simd
      for (int64_t j = 0; j < end; ++j) a_r[j] *= w_r[j];
    }
  }

  const int64_t k_width, v_width, ld_k, ld_w;
  ChunkRows rows{};
  MlstmGates<T> gates;
  T *q, *k;      // [padded, ld_k] as they came
  T* v;          // [padded, ld_w], widened by the column of ones
  T* q_read;     // scale exp(m_in - M) q: [num, den] = q_read S_in + attention v
  T* k_write;    // exp(x + B_C - m_out) k: S_out = keep S_in + k_write^T v
  T* weight;     // scale exp(x_j - M_r), stride kChunk
  T* attention;  // A, stride kChunk

 private:
  T* k_t_;  // k transposed, stride kChunk
};

}  // namespace lt2::cpu
