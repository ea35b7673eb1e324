#include "kernels/cpu/blocks.h"
#include "kernels/cpu/scan_mlstm_chunk.h"
#include "kernels/scan_mlstm.h"

namespace lt2::cpu {
namespace {

// One head of one document, chunk after chunk.
template <class T>
class ForwardPass {
 public:
  ForwardPass(const ScanMlstmForwardArgs& args, int64_t document, int64_t head, Scratch& scratch)
      : a_(args),
        document_(document),
        head_(head),
        k_(args.q_NHK.dim(2)),
        v_(args.v_NHV.dim(2)),
        chunk_(scratch, k_, v_),
        state_(scratch.Take<T>(k_ * chunk_.ld_w)),
        y_(scratch.Take<T>(kChunk * chunk_.ld_w)) {}

  void Run() {
    const int64_t initial = InitialRow(a_.initial_DHKW, document_);
    LoadRows<T>(State(a_.initial_DHKW, initial), v_ + 1, k_, v_ + 1, k_, chunk_.ld_w, state_);
    if (initial >= 0) max_ = *Scalar(a_.initial_max_DH, initial);
    const int32_t* first = a_.documents.first_chunks().data<int32_t>() + document_;
    for (int64_t chunk = first[0]; chunk < first[1]; ++chunk) RunChunk(chunk);
    Save(a_.final_DHKW, a_.final_max_DH, FinalRow(a_.final_DHKW, a_.documents, document_));
  }

 private:
  // This head's state i of x [·, heads, K, W], and its number i of x [·, heads].
  T* State(const Tensor& x, int64_t i) const {
    if (!x.defined() || i < 0) return nullptr;
    return x.data<T>() + (i * x.dim(1) + head_) * k_ * (v_ + 1);
  }
  T* Scalar(const Tensor& x, int64_t i) const { return x.data<T>() + i * x.dim(1) + head_; }
  void Save(const Tensor& states, const Tensor& maxes, int64_t i) const {
    T* to = State(states, i);
    if (to == nullptr) return;
    StoreRows(state_, chunk_.ld_w, k_, v_ + 1, to, v_ + 1);
    *Scalar(maxes, i) = max_;
  }

  void RunChunk(int64_t chunk) {
    const ChunkRows rows = RowsOfChunk(a_.documents, chunk);
    const int64_t n = rows.padded, ld_w = chunk_.ld_w, ld_k = chunk_.ld_k;
    Save(a_.states_CHKW, a_.maxes_CH, chunk);
    chunk_.Load(a_, rows, head_, max_);

    if (a_.o_NHV.defined()) Outputs(rows);

    Scale(chunk_.gates.keep, k_ * ld_w, state_);
    ProductTransposed<true>(k_, ld_w, n, chunk_.k_write, ld_k, chunk_.v, ld_w, state_, ld_w);
    max_ = chunk_.gates.out;
  }

  void Outputs(const ChunkRows& rows) {
    const int64_t n = rows.padded, ld_w = chunk_.ld_w, ld_k = chunk_.ld_k;
    Product<false>(n, ld_w, k_, chunk_.q_read, ld_k, state_, ld_w, y_, ld_w);
    LowerTimes<true>(n, ld_w, chunk_.attention, chunk_.v, ld_w, y_);
    for (int64_t r = 0; r < rows.rows; ++r) {
      const T* y = y_ + r * ld_w;
      const T den = y[v_], inverse = T(1) / std::max(std::abs(den), chunk_.gates.floor[r]);
      T* o = HeadRows<T>(a_.o_NHV, rows.token + r, head_);
#pragma omp simd
      for (int64_t j = 0; j < v_; ++j) o[j] = y[j] * inverse;
      if (a_.den_NH.defined()) *Scalar(a_.den_NH, rows.token + r) = den;
    }
  }

  const ScanMlstmForwardArgs& a_;
  const int64_t document_, head_, k_, v_;
  MlstmChunk<T> chunk_;
  T *state_, *y_;  // [K, ld_w], [kChunk, ld_w]: the state, and [num, den]
  T max_ = 0;
};

}  // namespace

void ScanMlstmForward(Stream&, const ScanMlstmForwardArgs& a) {
  ZeroAbsent(a.final_DHKW, a.documents);
  ZeroAbsent(a.final_max_DH, a.documents);
  DispatchFloat(a.v_NHV.dtype(), [&]<class T>() {
#pragma omp parallel for schedule(dynamic) collapse(2)
    for (int64_t d = 0; d < a.documents.count(); ++d) {
      for (int64_t h = 0; h < a.q_NHK.dim(1); ++h) {
        if (a.o_NHV.defined() || FinalRow(a.final_DHKW, a.documents, d) >= 0) {
          ForwardPass<T>(a, d, h, Scratch::Restart()).Run();
        }
      }
    }
  });
}

}  // namespace lt2::cpu
