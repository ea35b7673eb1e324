// The gradients of one chunk's inputs, once the reverse pass has left dS_out and E = dR, the
// gradient of the right-hand side R = beta (V - exp(G) K S_in).
//
// D and P as in scan_delta_chunk.h, and over pairs j < r resp. j <= r
//   B = -E U^T ⊙ D          (gradient of A without beta),  j < r
//   W = scale dO U^T ⊙ D    (gradient of <q_r, k_j>),      j <= r
//   dQ     = scale exp(G) dO S_in^T + W K
//   X      = -exp(G) E S_in^T + B K                   dbeta_r = <E_r, v_r> + <X_r, k_r>
//   dWrite = exp(G_C - G) U dS_out^T + W^T Q + B^T (beta K)
//   dK     = beta X + dWrite,  dV = beta E
//   dG_r   = <q_r, dQ_r> + <k_r, beta_r X_r> - <k_r, dWrite_r>, and the last row gets
//            sum_j <k_j, exp(G_C - G_j) dS_out u_j> + exp(G_C) <S_in, dS_out> on top
//   dg_t   = sum of dG_r over r >= t in the chunk
//
// With a decay per key channel D goes inside the products over pairs (B and W are without it), and
// dG and dg stay vectors over channels: the inner products over them are elementwise.
#pragma once

#include "kernels/cpu/scan_delta_chunk.h"
#include "kernels/scan_delta.h"

namespace lt2::cpu {

// All value heads of one key head, so that their shares of dq and dk are added in order.
template <class T>
class ChunkGradients {
 public:
  ChunkGradients(const ScanDeltaBackwardArgs& args, Scratch& scratch)
      : a_(args),
        heads_(args.v_NGV.dim(1)),
        key_heads_(args.q_NHK.dim(1)),
        k_(args.q_NHK.dim(2)),
        v_(args.v_NGV.dim(2)),
        ld_(PadToLanes<T>(v_)),
        chunk_(scratch, k_, args.g_NGK.defined()),
        state_t_(scratch.Take<T>(ld_ * chunk_.ld)),
        dstate_t_(scratch.Take<T>(ld_ * chunk_.ld)),
        square_(scratch.Take<T>(PadToLanes<T>(k_) * ld_)),
        do_e_(scratch.Take<T>(2 * kChunk * ld_)),
        u_(scratch.Take<T>(kChunk * ld_)),
        u_t_(scratch.Take<T>(ld_ * kChunk)),
        w_(scratch.Take<T>(kChunk * kChunk)),
        b_(scratch.Take<T>(kChunk * kChunk)),
        dq_x_(scratch.Take<T>(2 * kChunk * chunk_.ld)),
        dwrite_(scratch.Take<T>(kChunk * chunk_.ld)),
        beta_k_(scratch.Take<T>(kChunk * chunk_.ld)),
        at_end_(scratch.Take<double>(chunk_.ld)) {}

  void Run(int64_t chunk, int64_t key_head) {
    rows_ = RowsOfChunk(a_.documents, chunk);
    chunk_index_ = chunk;
    key_head_ = key_head;
    const int64_t group = heads_ / key_heads_;
    for (int64_t i = 0; i < group; ++i) RunHead(key_head * group + i, i == 0);
  }

 private:
  // State `chunk` of x [C, G, K, V], transposed to [V, K] with padded strides.
  void LoadStateTransposed(const Tensor& x, int64_t head, T* to) {
    const T* from = x.data<T>() + (chunk_index_ * heads_ + head) * k_ * v_;
    const int64_t k_padded = PadToLanes<T>(k_);
    LoadRows(from, v_, k_, v_, k_padded, ld_, square_);
    Transpose(k_padded, ld_, square_, ld_, to, chunk_.ld);
  }
  void LoadValues(const Tensor& x, int64_t head, T* to) {
    LoadRows<T>(HeadRows<T>(x, rows_.token, head), heads_ * v_, rows_.rows, v_, rows_.padded, ld_,
                to);
  }

  void RunHead(int64_t head, bool first) {
    const int64_t n = rows_.padded, ld_k = chunk_.ld;
    chunk_.Load(a_, rows_, head);
    LoadStateTransposed(a_.states_CGKV, head, state_t_);
    LoadStateTransposed(a_.dstates_CGKV, head, dstate_t_);
    T *d_o = do_e_, *e = do_e_ + n * ld_;
    LoadValues(a_.do_NGV, head, d_o);
    LoadValues(a_.e_NGV, head, e);
    LoadValues(a_.u_NGV, head, u_);
    for (int64_t r = 0; r < n; r += kMicroLanes<T>) {
      Transpose(kMicroLanes<T>, ld_, u_ + r * ld_, ld_, u_t_ + r, kChunk);
    }
    PairGradients(d_o, e);

    T *dq = dq_x_, *x = dq_x_ + n * ld_k;
    Product<false>(2 * n, ld_k, v_, do_e_, ld_, state_t_, ld_k, dq_x_, ld_k);
    chunk_.ScaleToRead(chunk_.scale, dq, dq);
    chunk_.ScaleToRead(-1, x, x);
    Product<false>(n, ld_k, v_, u_, ld_, dstate_t_, ld_k, dwrite_, ld_k);
    chunk_.ScaleToWrite(dwrite_, dwrite_);
    AtEnd();
    ScaleRows(chunk_.gates.beta, chunk_.k, n, ld_k, beta_k_);
    if (chunk_.channels) {
      chunk_.channels->AddPairGradients(w_, chunk_.q, chunk_.k, dq, dwrite_);
      chunk_.channels->AddPairGradients(b_, beta_k_, chunk_.k, x, dwrite_);
    } else {
      LowerTimes<true>(n, ld_k, w_, chunk_.k, ld_k, dq);
      LowerTimes<true>(n, ld_k, b_, chunk_.k, ld_k, x);
      AddLowerTransposedTimes(n, ld_k, w_, chunk_.q, ld_k, dwrite_);
      AddLowerTransposedTimes(n, ld_k, b_, beta_k_, ld_k, dwrite_);
    }

    StoreKeys(dq, x, first);
    StoreBeta(head, e, x);
    StoreDecay(head, dq, x);
    StoreChannelDecay(head, dq, x);
    StoreValues(head, e);
  }

  // What the last row's dG gets on top, per channel, or in all as element 0; dwrite_ has only the
  // state's share yet.
  void AtEnd() {
    if (!a_.dg_NG.to.defined() && !a_.dg_NGK.to.defined()) return;
    const int64_t ld_k = chunk_.ld;
    if (!chunk_.channels) {
      at_end_[0] = chunk_.gates.whole * Dot(state_t_, dstate_t_, v_ * ld_k);
      for (int64_t r = 0; r < rows_.padded; ++r) {
        at_end_[0] += Dot(chunk_.k + r * ld_k, dwrite_ + r * ld_k, k_);
      }
      return;
    }
    std::fill(at_end_, at_end_ + ld_k, 0.0);
    for (int64_t j = 0; j < v_; ++j) AddProduct(state_t_ + j * ld_k, dstate_t_ + j * ld_k);
    for (int64_t d = 0; d < k_; ++d) at_end_[d] *= chunk_.Whole(d);
    for (int64_t r = 0; r < rows_.padded; ++r) {
      AddProduct(chunk_.k + r * ld_k, dwrite_ + r * ld_k);
    }
  }
  void AddProduct(const T* a, const T* b) {
#pragma omp simd
    for (int64_t d = 0; d < k_; ++d) at_end_[d] += static_cast<double>(a[d] * b[d]);
  }

  // W and B.
  void PairGradients(const T* d_o, const T* e) {
    const int64_t n = rows_.padded;
    LowerOf(n, v_, d_o, ld_, u_t_, w_);
    LowerOf(n, v_, e, ld_, u_t_, b_);
    for (int64_t r = 0; r < n; ++r) {
      const int64_t end = r / kBlock * kBlock + kBlock;
      T *w_r = w_ + r * kChunk, *b_r = b_ + r * kChunk;
      const T* d_r = chunk_.decay + r * kChunk;
#pragma omp simd
      for (int64_t j = 0; j < end; ++j) {
        w_r[j] *= chunk_.scale * d_r[j];
        b_r[j] *= -d_r[j];
      }
      b_r[r] = 0;
    }
  }

  void StoreKeys(const T* dq, const T* x, bool first) {
    const int64_t stride = key_heads_ * k_;
    if (T* to = HeadRows<T>(a_.dq_NHK.to, rows_.token, key_head_)) {
      StoreRows(dq, chunk_.ld, rows_.rows, k_, to, stride, a_.dq_NHK.accumulate || !first);
    }
    T* to = HeadRows<T>(a_.dk_NHK.to, rows_.token, key_head_);
    const bool add = a_.dk_NHK.accumulate || !first;
    for (int64_t r = 0; r < rows_.rows && to != nullptr; ++r, to += stride) {
      const T beta = chunk_.gates.beta[r];
      const T *x_r = x + r * chunk_.ld, *write_r = dwrite_ + r * chunk_.ld;
#pragma omp simd
      for (int64_t d = 0; d < k_; ++d) to[d] = (add ? to[d] : T(0)) + beta * x_r[d] + write_r[d];
    }
  }

  void StoreBeta(int64_t head, const T* e, const T* x) {
    T* dbeta = HeadRows<T>(a_.dbeta_NG.to, rows_.token, head);
    const T* v = HeadRows<T>(a_.v_NGV, rows_.token, head);
    for (int64_t r = 0; r < rows_.rows && dbeta != nullptr; ++r) {
      const T value = Dot(chunk_.k + r * chunk_.ld, x + r * chunk_.ld, k_) +
                      Dot(e + r * ld_, v + r * heads_ * v_, v_);
      T& to = dbeta[r * heads_];
      to = (a_.dbeta_NG.accumulate ? to : T(0)) + value;
    }
  }

  void StoreDecay(int64_t head, const T* dq, const T* x) {
    T* dg = HeadRows<T>(a_.dg_NG.to, rows_.token, head);
    if (dg == nullptr) return;
    double later = at_end_[0];
    for (int64_t r = rows_.rows - 1; r >= 0; --r) {
      const T *q_r = chunk_.q + r * chunk_.ld, *k_r = chunk_.k + r * chunk_.ld;
      later += static_cast<double>(Dot(q_r, dq + r * chunk_.ld, k_)) +
               static_cast<double>(chunk_.gates.beta[r] * Dot(k_r, x + r * chunk_.ld, k_)) -
               static_cast<double>(Dot(k_r, dwrite_ + r * chunk_.ld, k_));
      T& to = dg[r * heads_];
      to = (a_.dg_NG.accumulate ? to : T(0)) + static_cast<T>(later);
    }
  }

  void StoreChannelDecay(int64_t head, const T* dq, const T* x) {
    T* to = HeadRows<T>(a_.dg_NGK.to, rows_.token, head);
    if (to == nullptr) return;
    const bool add = a_.dg_NGK.accumulate;
    double* later = at_end_;
    to += (rows_.rows - 1) * heads_ * k_;
    for (int64_t r = rows_.rows - 1; r >= 0; --r, to -= heads_ * k_) {
      const T *q_r = chunk_.q + r * chunk_.ld, *k_r = chunk_.k + r * chunk_.ld;
      const T *dq_r = dq + r * chunk_.ld, *x_r = x + r * chunk_.ld;
      const T *write_r = dwrite_ + r * chunk_.ld, beta = chunk_.gates.beta[r];
#pragma omp simd
      for (int64_t d = 0; d < k_; ++d) {
        later[d] += static_cast<double>(q_r[d] * dq_r[d] + k_r[d] * (beta * x_r[d] - write_r[d]));
        to[d] = (add ? to[d] : T(0)) + static_cast<T>(later[d]);
      }
    }
  }

  void StoreValues(int64_t head, T* e) {
    T* to = HeadRows<T>(a_.dv_NGV.to, rows_.token, head);
    if (to == nullptr) return;
    ScaleRows(chunk_.gates.beta, e, rows_.rows, ld_, e);
    StoreRows(e, ld_, rows_.rows, v_, to, heads_ * v_, a_.dv_NGV.accumulate);
  }

  const ScanDeltaBackwardArgs& a_;
  const int64_t heads_, key_heads_, k_, v_, ld_;
  DeltaChunk<T> chunk_;
  T *state_t_, *dstate_t_, *square_;  // [V, K] × 2, [K, V]
  T* do_e_;                           // dO, then E right after its rows
  T *u_, *u_t_, *w_, *b_;
  T* dq_x_;  // dQ, then X right after its rows
  T *dwrite_, *beta_k_;
  double* at_end_;  // [K]
  ChunkRows rows_{};
  int64_t chunk_index_ = 0, key_head_ = 0;
};

}  // namespace lt2::cpu
