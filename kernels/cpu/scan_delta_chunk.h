// One chunk of the delta rule, as far as queries and keys determine it.
//
// With G the cumulative log-decay inside the chunk and D_rj = exp(G_r - G_j) for j <= r, the rule
// for C tokens at once is
//   (I + A) U = beta (V - exp(G) K S_in)      A_rj = beta_r <k_r, k_j> D_rj, j < r
//   O         = scale exp(G) Q S_in + P U     P_rj = scale <q_r, k_j> D_rj, j <= r
//   S_out     = exp(G_C) S_in + (exp(G_C - G) K)^T U
// The triangular system is solved by blocks of kBlock rows whose diagonal blocks are inverted. With
// a decay per key channel D goes inside the products over channels (channel_pairs.h); the passes
// over chunks see the same operands.
#pragma once

#include <optional>

#include "kernels/cpu/channel_pairs.h"
#include "kernels/cpu/chunk_decay.h"
#include "kernels/cpu/chunk_products.h"
#include "kernels/cpu/scan_rows.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/transpose.h"

namespace lt2::cpu {

// Decays and beta of a chunk's rows; rows past its end neither decay nor write.
template <class T>
struct ChunkGates : ChunkDecay<T> {
  T beta[kChunk];

  // g and beta: a head's values, stride apart. g null: no decay.
  void Load(const T* g, const T* beta_in, int64_t stride, const ChunkRows& rows) {
    ChunkDecay<T>::Load(g, stride, /*constant=*/0, rows);
    for (int64_t r = 0; r < rows.padded; ++r) {
      beta[r] = r < rows.rows ? beta_in[r * stride] : T(0);
    }
  }
};

template <class T>
class DeltaChunk {
 public:
  // per_channel: the decay comes in g_NGK.
  DeltaChunk(Scratch& scratch, int64_t key_width, bool per_channel)
      : width(key_width),
        ld(PadToLanes<T>(key_width)),
        q(scratch.Take<T>(kChunk * ld)),
        k(scratch.Take<T>(kChunk * ld)),
        q_read(scratch.Take<T>(kChunk * ld)),
        k_read(scratch.Take<T>(kChunk * ld)),
        k_write(scratch.Take<T>(kChunk * ld)),
        decay(scratch.Take<T>(kChunk * kChunk)),
        attention(scratch.Take<T>(kChunk * kChunk)),
        k_t_(scratch.Take<T>(ld * kChunk)),
        minus_a_(scratch.Take<T>(kChunk * kChunk)),
        inverse_(scratch.Take<T>(kChunk * kBlock)),
        whole_(scratch.Take<T>(ld)) {
    if (per_channel) channels.emplace(scratch, key_width);
  }

  // From Args of either pass: q_NHK, k_NHK, g_NG, g_NGK, beta_NG, scale. Makes q, k and the decays.
  template <class Args>
  void Load(const Args& a, const ChunkRows& at, int64_t head) {
    const int64_t heads = a.beta_NG.dim(1), key_heads = a.q_NHK.dim(1);
    const int64_t key_head = head / (heads / key_heads), stride = key_heads * width;
    rows = at;
    LoadRows(HeadRows<T>(a.q_NHK, at.token, key_head), stride, at.rows, width, at.padded, ld, q);
    LoadRows(HeadRows<T>(a.k_NHK, at.token, key_head), stride, at.rows, width, at.padded, ld, k);
    gates.Load(HeadRows<T>(a.g_NG, at.token, head), HeadRows<T>(a.beta_NG, at.token, head), heads,
               at);
    gates.Pairs(at.padded, decay);
    if (channels) {
      channels->Load(HeadRows<T>(a.g_NGK, at.token, head), heads * width, at);
      channels->Whole(whole_);
    }
    scale = static_cast<T>(a.scale);
  }

  // What the sequential passes need beyond Load.
  void PrepareScan() {
    ScaleToRead(scale, q, q_read);
    ScaleToRead(-1, k, k_read);
    ScaleRows(gates.beta, k_read, rows.padded, ld, k_read);
    ScaleToWrite(k, k_write);
    if (channels) {
      channels->Pairs(1, q, k, attention);
      channels->Pairs(1, k, k, minus_a_);
    } else {
      for (int64_t r = 0; r < rows.padded; r += kMicroLanes<T>) {
        Transpose(kMicroLanes<T>, ld, k + r * ld, ld, k_t_ + r, kChunk);
      }
      LowerOf(rows.padded, width, q, ld, k_t_, attention);
      LowerOf(rows.padded, width, k, ld, k_t_, minus_a_);
    }
    for (int64_t r = 0; r < rows.padded; ++r) {
      const int64_t end = r / kBlock * kBlock + kBlock;
      const T minus_beta = -gates.beta[r];
      T *p_r = attention + r * kChunk, *a_r = minus_a_ + r * kChunk;
      const T* d_r = decay + r * kChunk;
#pragma omp simd
      for (int64_t j = 0; j < end; ++j) {
        p_r[j] *= scale * d_r[j];
        a_r[j] *= minus_beta * d_r[j];
      }
      a_r[r] = 0;
    }
    InvertDiagonalBlocks();
  }

  // Rows [padded, ld]: to = factor exp(G) x, and exp(G_C - G) x. to may be x.
  void ScaleToRead(T factor, const T* x, T* to) const {
    if (channels) return channels->ScaleFromStart(factor, x, to);
    T by[kChunk];
    for (int64_t r = 0; r < rows.padded; ++r) by[r] = factor * gates.from_start[r];
    ScaleRows(by, x, rows.padded, ld, to);
  }
  void ScaleToWrite(const T* x, T* to) const {
    if (channels) return channels->ScaleToEnd(x, to);
    ScaleRows(gates.to_end, x, rows.padded, ld, to);
  }
  // state [K, ld_state] times exp(G_C).
  void DecayState(int64_t ld_state, T* state) const {
    if (channels) return ScaleRows(whole_, state, width, ld_state, state);
    Scale(gates.whole, width * ld_state, state);
  }
  // exp(G_C) of key channel d, with a decay per channel.
  T Whole(int64_t d) const { return whole_[d]; }

  // (I + A) u = r, [padded, lanes] of stride ld_u. r is used up.
  void Solve(int64_t lanes, int64_t ld_u, T* r, T* u) const {
    for (int64_t i = 0; i < rows.padded; i += kBlock) {
      Product<true>(kBlock, lanes, i, minus_a_ + i * kChunk, kChunk, u, ld_u, r + i * ld_u, ld_u);
      Product<false>(kBlock, lanes, kBlock, inverse_ + i * kBlock, kBlock, r + i * ld_u, ld_u,
                     u + i * ld_u, ld_u);
    }
  }

  // (I + A)^T e = r.
  void SolveTransposed(int64_t lanes, int64_t ld_e, T* r, T* e) const {
    for (int64_t i = rows.padded - kBlock; i >= 0; i -= kBlock) {
      const int64_t below = i + kBlock;
      ProductTransposed<true>(kBlock, lanes, rows.padded - below, minus_a_ + below * kChunk + i,
                              kChunk, e + below * ld_e, ld_e, r + i * ld_e, ld_e);
      ProductTransposed<false>(kBlock, lanes, kBlock, inverse_ + i * kBlock, kBlock, r + i * ld_e,
                               ld_e, e + i * ld_e, ld_e);
    }
  }

  const int64_t width, ld;  // K and its padded stride
  ChunkRows rows{};
  ChunkGates<T> gates;                      // without decay where there is one per channel
  std::optional<ChannelPairs<T>> channels;  // where there is
  T scale = 1;
  T *q, *k;      // [padded, ld] as they came
  T* q_read;     // scale exp(G) q: o = q_read S_in + attention u
  T* k_read;     // -beta exp(G) k: the system's right-hand side is beta v + k_read S_in
  T* k_write;    // exp(G_C - G) k: S_out = exp(G_C) S_in + k_write^T u
  T* decay;      // D, stride kChunk; ones with a decay per channel
  T* attention;  // P, stride kChunk

 private:
  // Row m of the inverse is final when rows below it receive their share of it.
  void InvertDiagonalBlocks() {
    for (int64_t i = 0; i < rows.padded; i += kBlock) {
      T inverse[kBlock][kBlock] = {};
      for (int64_t r = 0; r < kBlock; ++r) inverse[r][r] = 1;
      for (int64_t m = 0; m < kBlock; ++m) {
        for (int64_t r = m + 1; r < kBlock; ++r) {
          const T a = minus_a_[(i + r) * kChunk + i + m];
#pragma omp simd
          for (int64_t j = 0; j < kBlock; ++j) inverse[r][j] += a * inverse[m][j];
        }
      }
      std::copy(&inverse[0][0], &inverse[0][0] + kBlock * kBlock, inverse_ + i * kBlock);
    }
  }

  T* k_t_;      // k transposed, stride kChunk
  T* minus_a_;  // -A, stride kChunk
  T* inverse_;  // of the diagonal blocks of I + A, [padded, kBlock]
  T* whole_;    // exp(G_C) per channel
};

}  // namespace lt2::cpu
