// One chunk of an additive state with a decay per head, as far as queries and keys determine it.
//
// With G the cumulative log-decay inside the chunk and D_rj = exp(G_r - G_j) for j <= r
//   O     = (scale exp(G) Q) S_in + P V        P_rj = scale <q_r, k_j> D_rj, j <= r
//   S_out = exp(G_C) S_in + (exp(G_C - G) K)^T V
// The passes over chunks (additive_passes.h, additive_gradients.h) see only what is public here;
// channel_chunk.h is the same with a decay per key channel.
#pragma once

#include "kernels/cpu/chunk_decay.h"
#include "kernels/cpu/chunk_products.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/transpose.h"
#include "kernels/scan.h"

namespace lt2::cpu {

template <class T>
class ScalarChunk {
 public:
  ScalarChunk(Scratch& scratch, int64_t key_width)
      : width(key_width),
        ld(PadToLanes<T>(key_width)),
        q(scratch.Take<T>(kChunk * ld)),
        k(scratch.Take<T>(kChunk * ld)),
        q_read(scratch.Take<T>(kChunk * ld)),
        k_write(scratch.Take<T>(kChunk * ld)),
        attention(scratch.Take<T>(kChunk * kChunk)),
        decay_(scratch.Take<T>(kChunk * kChunk)),
        k_t_(scratch.Take<T>(ld * kChunk)) {}

  // From Args of either pass.
  template <class Args>
  void Load(const Args& a, const ChunkRows& at, int64_t head) {
    const int64_t heads = a.v_NGV.dim(1), key_heads = a.q_NHK.dim(1);
    const int64_t key_head = head / (heads / key_heads), stride = key_heads * width;
    rows = at;
    scale = static_cast<T>(a.scale);
    LoadRows(HeadRows<T>(a.q_NHK, at.token, key_head), stride, at.rows, width, at.padded, ld, q);
    LoadRows(HeadRows<T>(a.k_NHK, at.token, key_head), stride, at.rows, width, at.padded, ld, k);
    const double constant = a.log_gamma_G.defined() ? a.log_gamma_G.template data<T>()[head] : 0.0;
    gates_.Load(HeadRows<T>(a.g_NG, at.token, head), heads, constant, at);
    gates_.Pairs(at.padded, decay_);
  }

  // q_read, k_write and attention, for the sequential passes.
  void PrepareScan() {
    std::copy(q, q + rows.padded * ld, q_read);
    std::copy(k, k + rows.padded * ld, k_write);
    ScaleToRead(q_read);
    ScaleToWrite(k_write);
    TransposeKeys();
    LowerOf(rows.padded, width, q, ld, k_t_, attention);
    DecayPairs(scale, attention);
  }

  // x [padded, ld] *= scale exp(G), and *= exp(G_C - G).
  void ScaleToRead(T* x) const {
    T factor[kChunk];
    for (int64_t r = 0; r < rows.padded; ++r) factor[r] = scale * gates_.from_start[r];
    ScaleRows(factor, x, rows.padded, ld, x);
  }
  void ScaleToWrite(T* x) const { ScaleRows(gates_.to_end, x, rows.padded, ld, x); }

  // state [K, ld_state] *= exp(G_C).
  void DecayState(int64_t ld_state, T* state) const {
    Scale(gates_.whole, width * ld_state, state);
  }

  // With w the gradient of <q_r, k_j> D_rj: dq += (w ⊙ D) k and dk += (w ⊙ D)^T q. w becomes w ⊙ D.
  void AddPairGradients(T* w, T* dq, T* dk) const {
    DecayPairs(T(1), w);
    LowerTimes<true>(rows.padded, ld, w, k, ld, dq);
    AddLowerTransposedTimes(rows.padded, ld, w, q, ld, dk);
  }

  // What passes a row through states, from S_in and dS_out transposed, dq = scale exp(G) ⊙ (dO
  // S_in^T) and dwrite.
  void TakeCrossing(const T* state_t, const T* dstate_t, int64_t v_width, const T* dq,
                    const T* dwrite) {
    const T across = gates_.whole * Dot(state_t, dstate_t, v_width * ld);
    double earlier = across;
    for (int64_t r = 0; r < rows.rows; ++r) {
      crossing_[r] = earlier;
      earlier += static_cast<double>(Dot(k + r * ld, dwrite + r * ld, width));
    }
    double later = 0;
    for (int64_t r = rows.rows - 1; r >= 0; --r) {
      later += static_cast<double>(Dot(q + r * ld, dq + r * ld, width));
      crossing_[r] += later;
    }
  }

  // dg_t = crossing + sum over pairs r >= t > j of E_rj = W_rj D_rj <q_r, k_j>, from w as
  // AddPairGradients leaves it. A pair enters and leaves the sum as the same number, and the sum is
  // in double: what rounding it has stays where the pair is.
  void StoreDecayGradient(const GradInto& dg_NG, int64_t head, const T* w, const T* /*dq*/,
                          const T* /*dk*/, const T* /*dwrite*/) {
    TransposeKeys();
    LowerOf(rows.padded, width, q, ld, k_t_, attention);
    double change[kChunk] = {};  // of the sum, from t + 1 to t
    for (int64_t r = 0; r < rows.rows; ++r) {
      for (int64_t j = 0; j < r; ++j) {
        const auto pair = static_cast<double>(w[r * kChunk + j] * attention[r * kChunk + j]);
        change[r] += pair;
        change[j] -= pair;
      }
    }
    T* to = HeadRows<T>(dg_NG.to, rows.token, head);
    const int64_t heads = dg_NG.to.dim(1);
    double pairs = 0;
    for (int64_t r = rows.rows - 1; r >= 0; --r) {
      pairs += change[r];
      T& value = to[r * heads];
      value = (dg_NG.accumulate ? value : T(0)) + static_cast<T>(crossing_[r] + pairs);
    }
  }

  const int64_t width, ld;  // K and its padded stride
  ChunkRows rows{};
  T scale = 1;
  T *q, *k;      // [padded, ld] as they came
  T* q_read;     // scale exp(G) q
  T* k_write;    // exp(G_C - G) k
  T* attention;  // P, stride kChunk

 private:
  void TransposeKeys() {
    for (int64_t r = 0; r < rows.padded; r += kMicroLanes<T>) {
      Transpose(kMicroLanes<T>, ld, k + r * ld, ld, k_t_ + r, kChunk);
    }
  }

  // x_rj *= factor D_rj, which is zero above the diagonal.
  void DecayPairs(T factor, T* x) const {
    for (int64_t r = 0; r < rows.padded; ++r) {
      const int64_t end = r / kBlock * kBlock + kBlock;
      T* x_r = x + r * kChunk;
      const T* d_r = decay_ + r * kChunk;
#pragma omp simd
      for (int64_t j = 0; j < end; ++j) x_r[j] *= factor * d_r[j];
    }
  }

  ChunkDecay<T> gates_;
  double crossing_[kChunk];
  T* decay_;  // D, stride kChunk
  T* k_t_;    // k transposed, stride kChunk
};

}  // namespace lt2::cpu
