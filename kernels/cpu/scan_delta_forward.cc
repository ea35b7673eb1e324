#include "kernels/cpu/scan_delta_chunk.h"
#include "kernels/cpu/scan_units.h"
#include "kernels/scan_delta.h"

namespace lt2::cpu {
namespace {

template <class T>
class ForwardPass {
 public:
  ForwardPass(const ScanDeltaForwardArgs& args, const ScanUnit& unit, Scratch& scratch)
      : a_(args),
        at_(unit, args.q_NHK, args.v_NGV),
        chunk_(scratch, at_.k, args.g_NGK.defined()),
        state_(scratch.Take<T>(at_.k * at_.ld)),
        right_(scratch.Take<T>(kChunk * at_.ld)),
        u_(scratch.Take<T>(kChunk * at_.ld)),
        o_(scratch.Take<T>(kChunk * at_.ld)) {}

  void Run() {
    const int64_t document = at_.unit.document;
    at_.LoadState(a_.initial_DGKV, InitialRow(a_.initial_DGKV, document), state_);
    const int32_t* first = a_.documents.first_chunks().data<int32_t>() + document;
    for (int64_t chunk = first[0]; chunk < first[1]; ++chunk) RunChunk(chunk);
    at_.StoreState(state_, a_.final_DGKV, FinalRow(a_.final_DGKV, a_.documents, document));
  }

 private:
  void RunChunk(int64_t chunk) {
    const ChunkRows rows = RowsOfChunk(a_.documents, chunk);
    const int64_t n = rows.padded, k = at_.k, ld = at_.ld;
    at_.StoreState(state_, a_.states_CGKV, chunk);
    chunk_.Load(a_, rows, at_.unit.head);
    chunk_.PrepareScan();

    at_.LoadValues(a_.v_NGV, rows, right_);
    ScaleRows(chunk_.gates.beta, right_, n, ld, right_);
    Product<true>(n, ld, k, chunk_.k_read, chunk_.ld, state_, ld, right_, ld);
    chunk_.Solve(ld, ld, right_, u_);
    at_.StoreValues(u_, a_.u_NGV, rows);

    if (a_.o_NGV.defined()) {
      Product<false>(n, ld, k, chunk_.q_read, chunk_.ld, state_, ld, o_, ld);
      LowerTimes<true>(n, ld, chunk_.attention, u_, ld, o_);
      at_.StoreValues(o_, a_.o_NGV, rows);
    }

    chunk_.DecayState(ld, state_);
    ProductTransposed<true>(k, ld, n, chunk_.k_write, chunk_.ld, u_, ld, state_, ld);
  }

  const ScanDeltaForwardArgs& a_;
  const ScanLanes<T> at_;
  DeltaChunk<T> chunk_;
  T *state_, *right_, *u_, *o_;  // [K, ld], [kChunk, ld] × 3
};

bool Wanted(const ScanDeltaForwardArgs& a, int64_t document) {
  return a.o_NGV.defined() || FinalRow(a.final_DGKV, a.documents, document) >= 0;
}

}  // namespace

void ScanDeltaForward(Stream&, const ScanDeltaForwardArgs& a) {
  ZeroAbsent(a.final_DGKV, a.documents);
  DispatchFloat(a.v_NGV.dtype(), [&]<class T>() {
    ForEachScanUnit(a.documents.count(), a.v_NGV.dim(1), a.v_NGV.dim(2), [&](const ScanUnit& unit) {
      if (Wanted(a, unit.document)) ForwardPass<T>(a, unit, Scratch::Restart()).Run();
    });
  });
}

}  // namespace lt2::cpu
