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
#include "kernels/cpu/scan_units.h"
#include "kernels/scan_delta.h"

namespace lt2::cpu {
namespace {

template <class T>
class ReversePass {
 public:
  ReversePass(const ScanDeltaBackwardArgs& args, const ScanUnit& unit, Scratch& scratch)
      : a_(args),
        at_(unit, args.q_NHK, args.v_NGV),
        chunk_(scratch, at_.k, args.g_NGK.defined()),
        dstate_(scratch.Take<T>(at_.k * at_.ld)),
        do_(scratch.Take<T>(kChunk * at_.ld)),
        du_(scratch.Take<T>(kChunk * at_.ld)),
        e_(scratch.Take<T>(kChunk * at_.ld)) {}

  void Run() {
    const int64_t document = at_.unit.document;
    at_.LoadState(a_.dfinal_DGKV, FinalRow(a_.dfinal_DGKV, a_.documents, document), dstate_);
    const int32_t* first = a_.documents.first_chunks().data<int32_t>() + document;
    for (int64_t chunk = first[1] - 1; chunk >= first[0]; --chunk) RunChunk(chunk);
    at_.StoreState(dstate_, a_.dinitial_DGKV.to, InitialRow(a_.dinitial_DGKV.to, document),
                   a_.dinitial_DGKV.accumulate);
  }

 private:
  void RunChunk(int64_t chunk) {
    const ChunkRows rows = RowsOfChunk(a_.documents, chunk);
    const int64_t n = rows.padded, k = at_.k, ld = at_.ld;
    at_.StoreState(dstate_, a_.dstates_CGKV, chunk);
    chunk_.Load(a_, rows, at_.unit.head);
    chunk_.PrepareScan();
    at_.LoadValues(a_.do_NGV, rows, do_);

    Product<false>(n, ld, k, chunk_.k_write, chunk_.ld, dstate_, ld, du_, ld);
    AddLowerTransposedTimes(n, ld, chunk_.attention, do_, ld, du_);
    chunk_.SolveTransposed(ld, ld, du_, e_);
    at_.StoreValues(e_, a_.e_NGV, rows);

    chunk_.DecayState(ld, dstate_);
    ProductTransposed<true>(k, ld, n, chunk_.q_read, chunk_.ld, do_, ld, dstate_, ld);
    ProductTransposed<true>(k, ld, n, chunk_.k_read, chunk_.ld, e_, ld, dstate_, ld);
  }

  const ScanDeltaBackwardArgs& a_;
  const ScanLanes<T> at_;
  DeltaChunk<T> chunk_;
  T *dstate_, *do_, *du_, *e_;  // [K, ld], [kChunk, ld] × 3
};

}  // namespace

void ScanDeltaBackward(Stream&, const ScanDeltaBackwardArgs& a) {
  ZeroAbsent(a.dinitial_DGKV, a.documents);
  const int64_t key_heads = a.q_NHK.dim(1);
  const bool inputs =
      AnyWanted({&a.dq_NHK, &a.dk_NHK, &a.dv_NGV, &a.dg_NG, &a.dg_NGK, &a.dbeta_NG});
  DispatchFloat(a.v_NGV.dtype(), [&]<class T>() {
    ForEachScanUnit(a.documents.count(), a.v_NGV.dim(1), a.v_NGV.dim(2), [&](const ScanUnit& unit) {
      if (inputs || InitialRow(a.dinitial_DGKV.to, unit.document) >= 0) {
        ReversePass<T>(a, unit, Scratch::Restart()).Run();
      }
    });
    if (!inputs) return;
#pragma omp parallel for schedule(dynamic) collapse(2)
    for (int64_t chunk = 0; chunk < a.documents.chunk_count(); ++chunk) {
      for (int64_t head = 0; head < key_heads; ++head) {
        ChunkGradients<T>(a, Scratch::Restart()).Run(chunk, head);
      }
    }
  });
}

}  // namespace lt2::cpu
