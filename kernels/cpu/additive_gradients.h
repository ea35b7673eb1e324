// The gradients of one chunk's queries, keys and decays, once the reverse pass has left dS_out.
//
//   W  = scale dO V^T                                   (gradient of <q_r, k_j> D_rj), j <= r
//   dQ = scale exp(G) ⊙ (dO S_in^T) + (W ⊙ D) K
//   dK = dWrite + (W ⊙ D)^T Q,  dWrite = exp(G_C - G) ⊙ (V dS_out^T)
//
// A log-decay g_t sees what passes it: the state, exp(G_C) ⊙ rowsum(S_in ⊙ dS_out); what earlier
// rows write for later chunks, sum over j < t of k_j ⊙ dwrite_j; what this and later rows read from
// the state and from earlier rows, sum over r >= t of q_r ⊙ dq_r, less the pairs that both lie
// behind it, k_r ⊙ (dk - dwrite)_r. A row's pair with itself, which strong decay leaves as by far
// the largest term, is in neither: it is added to dq and dk last.
#pragma once

#include "kernels/cpu/chunk_products.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/transpose.h"
#include "kernels/scan_additive.h"

namespace lt2::cpu {

// All value heads of one key head, so that their shares of dq and dk are added in order.
template <class T, class Chunk>
class AdditiveGradients {
 public:
  AdditiveGradients(const ScanAdditiveBackwardArgs& args, Scratch& scratch)
      : a_(args),
        heads_(args.v_NGV.dim(1)),
        key_heads_(args.q_NHK.dim(1)),
        k_(args.q_NHK.dim(2)),
        v_(args.v_NGV.dim(2)),
        ld_(PadToLanes<T>(v_)),
        chunk_(scratch, k_),
        state_t_(scratch.Take<T>(ld_ * chunk_.ld)),
        dstate_t_(scratch.Take<T>(ld_ * chunk_.ld)),
        square_(scratch.Take<T>(chunk_.ld * ld_)),
        do_(scratch.Take<T>(kChunk * ld_)),
        values_(scratch.Take<T>(kChunk * ld_)),
        values_t_(scratch.Take<T>(ld_ * kChunk)),
        w_(scratch.Take<T>(kChunk * kChunk)),
        dq_(scratch.Take<T>(kChunk * chunk_.ld)),
        dk_(scratch.Take<T>(kChunk * chunk_.ld)),
        dwrite_(scratch.Take<T>(kChunk * chunk_.ld)) {}

  void Run(int64_t chunk, int64_t key_head) {
    rows_ = RowsOfChunk(a_.documents, chunk);
    const int64_t group = heads_ / key_heads_;
    for (int64_t i = 0; i < group; ++i) {
      const int64_t head = key_head * group + i;
      RunHead(chunk, head);
      StoreKeys(a_.dq_NHK, dq_, key_head, i == 0);
      StoreKeys(a_.dk_NHK, dk_, key_head, i == 0);
    }
  }

 private:
  // State `chunk` of x [C, G, K, V], transposed to [V, K] with padded strides.
  void LoadStateTransposed(const Tensor& x, int64_t chunk, int64_t head, T* to) {
    const T* from = x.data<T>() + (chunk * heads_ + head) * k_ * v_;
    LoadRows(from, v_, k_, v_, chunk_.ld, ld_, square_);
    Transpose(chunk_.ld, ld_, square_, ld_, to, chunk_.ld);
  }
  void LoadValues(const Tensor& x, int64_t head, T* to) {
    LoadRows<T>(HeadRows<T>(x, rows_.token, head), heads_ * v_, rows_.rows, v_, rows_.padded, ld_,
                to);
  }

  void RunHead(int64_t chunk, int64_t head) {
    const GradInto& dg = a_.g_NGK.defined() ? a_.dg_NGK : a_.dg_NG;
    const int64_t n = rows_.padded, ld_k = chunk_.ld;
    chunk_.Load(a_, rows_, head);
    LoadStateTransposed(a_.states_CGKV, chunk, head, state_t_);
    LoadStateTransposed(a_.dstates_CGKV, chunk, head, dstate_t_);
    LoadValues(a_.do_NGV, head, do_);
    LoadValues(a_.v_NGV, head, values_);

    Product<false>(n, ld_k, v_, do_, ld_, state_t_, ld_k, dq_, ld_k);
    chunk_.ScaleToRead(dq_);
    Product<false>(n, ld_k, v_, values_, ld_, dstate_t_, ld_k, dwrite_, ld_k);
    chunk_.ScaleToWrite(dwrite_);

    if (dg.to.defined()) chunk_.TakeCrossing(state_t_, dstate_t_, v_, dq_, dwrite_);

    T own[kChunk];  // the diagonal of W
    PairGradients(own);
    std::fill(dk_, dk_ + n * ld_k, T(0));
    chunk_.AddPairGradients(w_, dq_, dk_);
    if (dg.to.defined()) chunk_.StoreDecayGradient(dg, head, w_, dq_, dk_, dwrite_);
    for (int64_t r = 0; r < n; ++r) {
      const T *q = chunk_.q + r * ld_k, *k = chunk_.k + r * ld_k, *write = dwrite_ + r * ld_k;
      T *dq = dq_ + r * ld_k, *dk = dk_ + r * ld_k;
#pragma omp simd
      for (int64_t d = 0; d < ld_k; ++d) {
        dq[d] += own[r] * k[d];
        dk[d] += own[r] * q[d] + write[d];
      }
    }
  }

  // W below the diagonal, and its diagonal apart.
  void PairGradients(T* own) {
    for (int64_t r = 0; r < rows_.padded; r += kMicroLanes<T>) {
      Transpose(kMicroLanes<T>, ld_, values_ + r * ld_, ld_, values_t_ + r, kChunk);
    }
    LowerOf(rows_.padded, v_, do_, ld_, values_t_, w_);
    for (int64_t r = 0; r < rows_.padded; ++r) {
      Scale(chunk_.scale, r / kBlock * kBlock + kBlock, w_ + r * kChunk);
      own[r] = w_[r * kChunk + r];
      w_[r * kChunk + r] = 0;
    }
  }

  void StoreKeys(const GradInto& grad, const T* from, int64_t key_head, bool first) {
    T* to = HeadRows<T>(grad.to, rows_.token, key_head);
    if (to == nullptr) return;
    StoreRows(from, chunk_.ld, rows_.rows, k_, to, key_heads_ * k_, grad.accumulate || !first);
  }

  const ScanAdditiveBackwardArgs& a_;
  const int64_t heads_, key_heads_, k_, v_, ld_;
  Chunk chunk_;
  T *state_t_, *dstate_t_, *square_;  // [V, K] × 2, [K, V]
  T *do_, *values_, *values_t_, *w_;
  T *dq_, *dk_, *dwrite_;  // [kChunk, K]
  ChunkRows rows_{};
};

}  // namespace lt2::cpu
