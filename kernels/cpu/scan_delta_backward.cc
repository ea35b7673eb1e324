// The reverse pass over chunks: what has to go one after the other in the backward.
//
// With E the gradient of the system's right-hand side,
//   dU   = P^T dO + (exp(G_C - G) K) dS_out
//   E    = (I + A)^{-T} dU
//   dS_in = exp(G_C) dS_out + (scale exp(G) Q)^T dO - (beta exp(G) K)^T E
// E and dS_out are left for the gradients of each chunk (scan_delta_gradients.h), which then are
// independent of each other.
#include "kernels/cpu/scan_delta_chunk.h"
#include "kernels/cpu/scan_delta_gradients.h"
#include "kernels/cpu/scan_delta_passes.h"
#include "kernels/scan_delta.h"

namespace lt2::cpu {
namespace {

template <class T>
class ReversePass {
 public:
  ReversePass(const ScanDeltaBackwardArgs& args, const DeltaUnit& unit, Scratch& scratch)
      : a_(args),
        unit_(unit),
        heads_(args.v_NGV.dim(1)),
        k_(args.q_NHK.dim(2)),
        v_(args.v_NGV.dim(2)),
        ld_(PadToLanes<T>(unit.count)),
        chunk_(scratch, k_, args.g_NGK.defined()),
        dstate_(scratch.Take<T>(k_ * ld_)),
        do_(scratch.Take<T>(kChunk * ld_)),
        du_(scratch.Take<T>(kChunk * ld_)),
        e_(scratch.Take<T>(kChunk * ld_)) {}

  void Run() {
    LoadRows<T>(State(a_.dfinal_DGKV, unit_.document), v_, k_, unit_.count, k_, ld_, dstate_);
    const int32_t* first = a_.documents.first_chunks().data<int32_t>() + unit_.document;
    for (int64_t chunk = first[1] - 1; chunk >= first[0]; --chunk) RunChunk(chunk);
    if (T* to = State(a_.dinitial_DGKV.to, unit_.document)) {
      StoreRows(dstate_, ld_, k_, unit_.count, to, v_, a_.dinitial_DGKV.accumulate);
    }
  }

 private:
  T* State(const Tensor& x, int64_t i) const {
    if (!x.defined()) return nullptr;
    return x.data<T>() + (i * heads_ + unit_.head) * k_ * v_ + unit_.begin;
  }
  T* Values(const Tensor& x, int64_t token) const {
    return x.defined() ? HeadRows<T>(x, token, unit_.head) + unit_.begin : nullptr;
  }

  void RunChunk(int64_t chunk) {
    const ChunkRows rows = RowsOfChunk(a_.documents, chunk);
    const int64_t n = rows.padded, stride = heads_ * v_;
    StoreRows(dstate_, ld_, k_, unit_.count, State(a_.dstates_CGKV, chunk), v_);
    chunk_.Load(a_, rows, unit_.head);
    chunk_.PrepareScan();
    LoadRows<T>(Values(a_.do_NGV, rows.token), stride, rows.rows, unit_.count, n, ld_, do_);

    Product<false>(n, ld_, k_, chunk_.k_write, chunk_.ld, dstate_, ld_, du_, ld_);
    AddLowerTransposedTimes(n, ld_, chunk_.attention, do_, ld_, du_);
    chunk_.SolveTransposed(ld_, ld_, du_, e_);
    StoreRows(e_, ld_, rows.rows, unit_.count, Values(a_.e_NGV, rows.token), stride);

    chunk_.DecayState(ld_, dstate_);
    ProductTransposed<true>(k_, ld_, n, chunk_.q_read, chunk_.ld, do_, ld_, dstate_, ld_);
    ProductTransposed<true>(k_, ld_, n, chunk_.k_read, chunk_.ld, e_, ld_, dstate_, ld_);
  }

  const ScanDeltaBackwardArgs& a_;
  const DeltaUnit unit_;
  const int64_t heads_, k_, v_, ld_;
  DeltaChunk<T> chunk_;
  T *dstate_, *do_, *du_, *e_;  // [K, ld], [kChunk, ld] × 3
};

}  // namespace

void ScanDeltaBackward(Stream&, const ScanDeltaBackwardArgs& a) {
  const int64_t documents = a.documents.count(), key_heads = a.q_NHK.dim(1);
  if (a.dinitial_DGKV.to.defined() && !a.dinitial_DGKV.accumulate &&
      documents < a.documents.capacity()) {
    a.dinitial_DGKV.to.Rows(documents, a.documents.capacity()).Zero();
  }
  const int64_t heads = a.v_NGV.dim(1), width = a.v_NGV.dim(2);
  DispatchFloat(a.v_NGV.dtype(), [&]<class T>() {
    ForEachDeltaUnit(documents, heads, width, [&](const DeltaUnit& unit) {
      ReversePass<T>(a, unit, Scratch::Restart()).Run();
    });
#pragma omp parallel for schedule(dynamic) collapse(2)
    for (int64_t chunk = 0; chunk < a.documents.chunk_count(); ++chunk) {
      for (int64_t head = 0; head < key_heads; ++head) {
        ChunkGradients<T>(a, Scratch::Restart()).Run(chunk, head);
      }
    }
  });
}

}  // namespace lt2::cpu
