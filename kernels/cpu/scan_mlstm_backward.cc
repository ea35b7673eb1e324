// Chunks last to first. With dy the gradient of [num, den], dS that of the state a chunk ends with,
// and R = tril(dy [v, 1]^T), a log-weight x_j - M_r inside the chunk has the gradient A_rj R_rj;
// the read of the entry's state by row r has e_r, what row j leaves in the state has c_j, and the
// entry's state that is kept has g. A forget gate is part of every weight that spans it:
//   dlf_t = sum_{r >= t, j < t} A_rj R_rj + sum_{r >= t} e_r + sum_{j < t} c_j + g
// which, unlike differences of sums over rows, has nothing to cancel.
#include "kernels/cpu/blocks.h"
#include "kernels/cpu/scan_mlstm_chunk.h"
#include "kernels/scan_mlstm.h"

namespace lt2::cpu {
namespace {

template <class T>
class BackwardPass {
 public:
  BackwardPass(const ScanMlstmBackwardArgs& args, bool inputs, int64_t document, int64_t head,
               Scratch& scratch)
      : a_(args),
        inputs_(inputs),
        document_(document),
        head_(head),
        heads_(args.q_NHK.dim(1)),
        k_(args.q_NHK.dim(2)),
        v_(args.v_NHV.dim(2)),
        k_padded_(PadToLanes<T>(k_)),
        chunk_(scratch, k_, v_),
        ld_k_(chunk_.ld_k),
        ld_w_(chunk_.ld_w),
        state_(scratch.Take<T>(k_padded_ * ld_w_)),
        dstate_(scratch.Take<T>(k_padded_ * ld_w_)),
        turned_(scratch.Take<T>(ld_w_ * ld_k_)),
        dy_(scratch.Take<T>(kChunk * ld_w_)),
        dv_(scratch.Take<T>(kChunk * ld_w_)),
        v_t_(scratch.Take<T>(ld_w_ * kChunk)),
        pairs_(scratch.Take<T>(kChunk * kChunk)),
        dq_(scratch.Take<T>(kChunk * ld_k_)),
        dk_(scratch.Take<T>(kChunk * ld_k_)) {}

  void Run() {
    LoadState(a_.dfinal_DHKW, FinalRow(a_.dfinal_DHKW, a_.documents, document_), dstate_);
    const int32_t* first = a_.documents.first_chunks().data<int32_t>() + document_;
    for (int64_t chunk = first[1] - 1; chunk >= first[0]; --chunk) RunChunk(chunk);
    const GradInto& dinitial = a_.dinitial_DHKW;
    if (T* to = State(dinitial.to, InitialRow(dinitial.to, document_))) {
      StoreRows(dstate_, ld_w_, k_, v_ + 1, to, v_ + 1, dinitial.accumulate);
    }
  }

 private:
  T* State(const Tensor& x, int64_t i) const {
    if (!x.defined() || i < 0) return nullptr;
    return x.data<T>() + (i * heads_ + head_) * k_ * (v_ + 1);
  }
  void LoadState(const Tensor& x, int64_t i, T* to) const {
    LoadRows<T>(State(x, i), v_ + 1, k_, v_ + 1, k_padded_, ld_w_, to);
  }
  void StoreGrad(const GradInto& grad, const T* from, int64_t ld, int64_t width) const {
    T* to = HeadRows<T>(grad.to, chunk_.rows.token, head_);
    if (to == nullptr) return;
    StoreRows(from, ld, chunk_.rows.rows, width, to, heads_ * width, grad.accumulate);
  }

  // Of [num, den], from that of o = num / max(|den|, floor).
  void OutputGrad() {
    const ChunkRows& rows = chunk_.rows;
    LoadRows<T>(HeadRows<T>(a_.do_NHV, rows.token, head_), heads_ * v_, rows.rows, v_, rows.padded,
                ld_w_, dy_);
    if (!a_.do_NHV.defined()) return;
    for (int64_t r = 0; r < rows.rows; ++r) {
      T* dy = dy_ + r * ld_w_;
      const T den = *HeadRows<T>(a_.den_NH, rows.token + r, head_), size = std::abs(den);
      const T floor = chunk_.gates.floor[r], inverse = T(1) / std::max(size, floor);
      Scale(inverse, v_, dy);
      const T dot = Dot(dy, HeadRows<T>(a_.o_NHV, rows.token + r, head_), v_);
      dy[v_] = size > floor ? (den > 0 ? -dot : dot) : T(0);
    }
  }

  void RunChunk(int64_t chunk) {
    const ChunkRows rows = RowsOfChunk(a_.documents, chunk);
    const int64_t n = rows.padded;
    LoadState(a_.states_CHKW, chunk, state_);
    chunk_.Load(a_, rows, head_, *HeadRows<T>(a_.maxes_CH, chunk, head_));
    OutputGrad();

    if (inputs_) InputGrads(rows);

    Scale(chunk_.gates.keep, k_ * ld_w_, dstate_);
    ProductTransposed<true>(k_, ld_w_, n, chunk_.q_read, ld_k_, dy_, ld_w_, dstate_, ld_w_);
  }

  void InputGrads(const ChunkRows& rows) {
    AddPairGrads(rows.padded);
    ReadGrads(rows.padded);
    WriteGrads(rows.padded);
    GateGrads(rows);
    StoreGrad(a_.dq_NHK, dq_, ld_k_, k_);
    StoreGrad(a_.dk_NHK, dk_, ld_k_, k_);
    StoreGrad(a_.dv_NHV, dv_, ld_w_, v_);
  }

  // R, and A R of the gates.
  void AddPairGrads(int64_t n) {
    for (int64_t r = 0; r < n; r += kMicroLanes<T>) {
      Transpose(kMicroLanes<T>, ld_w_, chunk_.v + r * ld_w_, ld_w_, v_t_ + r, kChunk);
    }
    LowerOf(n, v_ + 1, dy_, ld_w_, v_t_, pairs_);
    std::fill(over_, over_ + kChunk, 0.0);
    std::fill(input_, input_ + kChunk, 0.0);
    for (int64_t r = 0; r < n; ++r) {
      const T *a = chunk_.attention + r * kChunk, *w = chunk_.weight + r * kChunk;
      T* p = pairs_ + r * kChunk;
      double sum = 0;
      for (int64_t j = 0; j <= r; ++j) {
        const double log_weight = static_cast<double>(a[j]) * p[j];
        over_[j] += sum;  // weights of row r from before token j
        input_[j] += log_weight;
        sum += log_weight;
      }
      const int64_t end = r / kBlock * kBlock + kBlock;
#pragma omp simd
      for (int64_t j = 0; j < end; ++j) p[j] *= w[j];
    }
  }

  // dq, and e. The state's part first: what follows adds to it.
  void ReadGrads(int64_t n) {
    Transpose(k_padded_, ld_w_, state_, ld_w_, turned_, ld_k_);
    Product<false>(n, ld_k_, v_ + 1, dy_, ld_w_, turned_, ld_k_, dq_, ld_k_);
    for (int64_t r = 0; r < n; ++r) {
      T* dq = dq_ + r * ld_k_;
      Scale(static_cast<T>(a_.scale) * chunk_.gates.read[r], ld_k_, dq);
      read_[r] = Dot(chunk_.q + r * ld_k_, dq, k_);
    }
    LowerTimes<true>(n, ld_k_, pairs_, chunk_.k, ld_k_, dq_);
  }

  // dk, dv, and c.
  void WriteGrads(int64_t n) {
    Transpose(k_padded_, ld_w_, dstate_, ld_w_, turned_, ld_k_);
    Product<false>(n, ld_k_, v_ + 1, chunk_.v, ld_w_, turned_, ld_k_, dk_, ld_k_);
    for (int64_t r = 0; r < n; ++r) {
      T* dk = dk_ + r * ld_k_;
      Scale(chunk_.gates.write[r], ld_k_, dk);
      write_[r] = Dot(chunk_.k + r * ld_k_, dk, k_);
    }
    AddLowerTransposedTimes(n, ld_k_, pairs_, chunk_.q, ld_k_, dk_);
    Product<false>(n, ld_w_, k_, chunk_.k_write, ld_k_, dstate_, ld_w_, dv_, ld_w_);
    AddLowerTransposedTimes(n, ld_w_, chunk_.attention, dy_, ld_w_, dv_);
  }

  void GateGrads(const ChunkRows& rows) {
    double kept = 0;
    for (int64_t d = 0; d < k_; ++d) {
      kept += Dot(state_ + d * ld_w_, dstate_ + d * ld_w_, v_ + 1);
    }
    kept *= chunk_.gates.keep;
    double later = 0;
    for (int64_t t = rows.rows - 1; t >= 0; --t) {
      later += read_[t];
      over_[t] += later + kept;
    }
    double earlier = 0;
    T di[kChunk], df[kChunk];
    for (int64_t t = 0; t < rows.rows; ++t) {
      const T f = *HeadRows<T>(a_.f_NH, rows.token + t, head_);
      df[t] = static_cast<T>(over_[t] + earlier) * Sigmoid(-f);
      di[t] = static_cast<T>(input_[t] + write_[t]);
      earlier += write_[t];
    }
    StoreGrad(a_.di_NH, di, 1, 1);
    StoreGrad(a_.df_NH, df, 1, 1);
  }

  const ScanMlstmBackwardArgs& a_;
  const bool inputs_;  // their gradients are wanted
  const int64_t document_, head_, heads_, k_, v_, k_padded_;
  MlstmChunk<T> chunk_;
  const int64_t ld_k_, ld_w_;
  T *state_, *dstate_;  // [K, ld_w]: what the chunk begins with, the gradient of what it ends with
  T* turned_;           // one of them transposed, [ld_w, ld_k]
  T *dy_, *dv_, *v_t_;  // [kChunk, ld_w] × 2, [ld_w, kChunk]
  T* pairs_;            // R, then R · weight, stride kChunk
  T *dq_, *dk_;         // [kChunk, ld_k]
  // Gradients of log-weights: summed over pairs that span a token, over rows that read it, e, c.
  double over_[kChunk], input_[kChunk];
  T read_[kChunk], write_[kChunk];
};

}  // namespace

void ScanMlstmBackward(Stream&, const ScanMlstmBackwardArgs& a) {
  ZeroAbsent(a.dinitial_DHKW, a.documents);
  const bool inputs = AnyWanted({&a.dq_NHK, &a.dk_NHK, &a.dv_NHV, &a.di_NH, &a.df_NH});
  DispatchFloat(a.v_NHV.dtype(), [&]<class T>() {
#pragma omp parallel for schedule(dynamic) collapse(2)
    for (int64_t d = 0; d < a.documents.count(); ++d) {
      for (int64_t h = 0; h < a.q_NHK.dim(1); ++h) {
        if (inputs || InitialRow(a.dinitial_DHKW.to, d) >= 0) {
          BackwardPass<T>(a, inputs, d, h, Scratch::Restart()).Run();
        }
      }
    }
  });
}

}  // namespace lt2::cpu
