// One chunk of an additive state with a decay per key channel, as far as queries and keys determine
// it: what scalar_chunk.h is for a decay per head, with exp(G) now of [rows, K].
#pragma once

#include "kernels/cpu/channel_pairs.h"
#include "kernels/scan.h"

namespace lt2::cpu {

template <class T>
class ChannelChunk {
 public:
  ChannelChunk(Scratch& scratch, int64_t key_width)
      : width(key_width),
        ld(PadToLanes<T>(key_width)),
        q(scratch.Take<T>(kChunk * ld)),
        k(scratch.Take<T>(kChunk * ld)),
        q_read(scratch.Take<T>(kChunk * ld)),
        k_write(scratch.Take<T>(kChunk * ld)),
        attention(scratch.Take<T>(kChunk * kChunk)),
        whole_(scratch.Take<T>(ld)),
        across_(scratch.Take<double>(ld)),
        later_(scratch.Take<double>(ld)),
        pairs_(scratch, key_width) {}

  // From Args of either pass.
  template <class Args>
  void Load(const Args& a, const ChunkRows& at, int64_t head) {
    const int64_t heads = a.v_NGV.dim(1), key_heads = a.q_NHK.dim(1);
    const int64_t key_head = head / (heads / key_heads), stride = key_heads * width;
    rows = at;
    scale = static_cast<T>(a.scale);
    LoadRows(HeadRows<T>(a.q_NHK, at.token, key_head), stride, at.rows, width, at.padded, ld, q);
    LoadRows(HeadRows<T>(a.k_NHK, at.token, key_head), stride, at.rows, width, at.padded, ld, k);
    pairs_.Load(HeadRows<T>(a.g_NGK, at.token, head), heads * width, at);
    pairs_.Whole(whole_);
  }

  void PrepareScan() {
    pairs_.ScaleFromStart(scale, q, q_read);
    pairs_.ScaleToEnd(k, k_write);
    pairs_.Pairs(scale, q, k, attention);
  }

  void ScaleToRead(T* x) const { pairs_.ScaleFromStart(scale, x, x); }
  void ScaleToWrite(T* x) const { pairs_.ScaleToEnd(x, x); }
  void DecayState(int64_t ld_state, T* state) const {
    ScaleRows(whole_, state, width, ld_state, state);
  }
  void AddPairGradients(const T* w, T* dq, T* dk) { pairs_.AddPairGradients(w, q, k, dq, dk); }

  void TakeCrossing(const T* state_t, const T* dstate_t, int64_t v_width, const T* /*dq*/,
                    const T* /*dwrite*/) {
    std::fill(across_, across_ + ld, 0.0);
    for (int64_t j = 0; j < v_width; ++j) {
      const T *s = state_t + j * ld, *ds = dstate_t + j * ld;
#pragma omp simd
      for (int64_t d = 0; d < ld; ++d) across_[d] += static_cast<double>(whole_[d] * s[d] * ds[d]);
    }
  }

  // Uses up what TakeCrossing left.
  void StoreDecayGradient(const GradInto& dg_NGK, int64_t head, const T* /*w*/, const T* dq,
                          const T* dk, const T* dwrite) {
    const int64_t stride = dg_NGK.to.dim(1) * width;
    T* to = HeadRows<T>(dg_NGK.to, rows.token, head);
    std::fill(later_, later_ + ld, 0.0);
    for (int64_t r = rows.rows - 1; r >= 0; --r) {
      const T *q_r = q + r * ld, *dq_r = dq + r * ld, *k_r = k + r * ld, *dk_r = dk + r * ld;
      T* to_r = to + r * stride;
#pragma omp simd
      for (int64_t d = 0; d < width; ++d) {
        later_[d] += static_cast<double>(q_r[d] * dq_r[d] - k_r[d] * dk_r[d]);
        to_r[d] = (dg_NGK.accumulate ? to_r[d] : T(0)) + static_cast<T>(later_[d]);
      }
    }
    for (int64_t r = 0; r < rows.rows; ++r) {
      const T *k_r = k + r * ld, *dwrite_r = dwrite + r * ld;
      T* to_r = to + r * stride;
#pragma omp simd
      for (int64_t d = 0; d < width; ++d) {
        to_r[d] += static_cast<T>(across_[d]);
        across_[d] += static_cast<double>(k_r[d] * dwrite_r[d]);
      }
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
  T* whole_;        // exp(G_C)
  double* across_;  // the share of dg of what goes into a row from before it
  double* later_;   // and of what passes between rows
  ChannelPairs<T> pairs_;
};

}  // namespace lt2::cpu
