#include "kernels/cpu/scan_delta_chunk.h"
#include "kernels/cpu/scan_delta_passes.h"
#include "kernels/scan_delta.h"

namespace lt2::cpu {
namespace {

template <class T>
class ForwardPass {
 public:
  ForwardPass(const ScanDeltaForwardArgs& args, const DeltaUnit& unit, Scratch& scratch)
      : a_(args),
        unit_(unit),
        heads_(args.v_NGV.dim(1)),
        k_(args.q_NHK.dim(2)),
        v_(args.v_NGV.dim(2)),
        ld_(PadToLanes<T>(unit.count)),
        chunk_(scratch, k_, args.g_NGK.defined()),
        state_(scratch.Take<T>(k_ * ld_)),
        right_(scratch.Take<T>(kChunk * ld_)),
        u_(scratch.Take<T>(kChunk * ld_)),
        o_(scratch.Take<T>(kChunk * ld_)) {}

  void Run() {
    LoadRows<T>(State(a_.initial_DGKV, unit_.document), v_, k_, unit_.count, k_, ld_, state_);
    const int32_t* first = a_.documents.first_chunks().data<int32_t>() + unit_.document;
    for (int64_t chunk = first[0]; chunk < first[1]; ++chunk) RunChunk(chunk);
    Save(a_.final_DGKV, unit_.document);
  }

 private:
  // This unit's lanes of state i of x [·, heads, K, V].
  T* State(const Tensor& x, int64_t i) const {
    if (!x.defined()) return nullptr;
    return x.data<T>() + (i * heads_ + unit_.head) * k_ * v_ + unit_.begin;
  }
  void Save(const Tensor& x, int64_t i) const {
    if (T* to = State(x, i)) StoreRows(state_, ld_, k_, unit_.count, to, v_);
  }
  T* Values(const Tensor& x, int64_t token) const {
    return HeadRows<T>(x, token, unit_.head) + unit_.begin;
  }

  void RunChunk(int64_t chunk) {
    const ChunkRows rows = RowsOfChunk(a_.documents, chunk);
    const int64_t n = rows.padded, stride = heads_ * v_;
    Save(a_.states_CGKV, chunk);
    chunk_.Load(a_, rows, unit_.head);
    chunk_.PrepareScan();

    LoadRows<T>(Values(a_.v_NGV, rows.token), stride, rows.rows, unit_.count, n, ld_, right_);
    ScaleRows(chunk_.gates.beta, right_, n, ld_, right_);
    Product<true>(n, ld_, k_, chunk_.k_read, chunk_.ld, state_, ld_, right_, ld_);
    chunk_.Solve(ld_, ld_, right_, u_);

    Product<false>(n, ld_, k_, chunk_.q_read, chunk_.ld, state_, ld_, o_, ld_);
    LowerTimes<true>(n, ld_, chunk_.attention, u_, ld_, o_);
    StoreRows(o_, ld_, rows.rows, unit_.count, Values(a_.o_NGV, rows.token), stride);
    if (a_.u_NGV.defined()) {
      StoreRows(u_, ld_, rows.rows, unit_.count, Values(a_.u_NGV, rows.token), stride);
    }

    chunk_.DecayState(ld_, state_);
    ProductTransposed<true>(k_, ld_, n, chunk_.k_write, chunk_.ld, u_, ld_, state_, ld_);
  }

  const ScanDeltaForwardArgs& a_;
  const DeltaUnit unit_;
  const int64_t heads_, k_, v_, ld_;
  DeltaChunk<T> chunk_;
  T *state_, *right_, *u_, *o_;  // [K, ld], [kChunk, ld] × 3
};

}  // namespace

void ScanDeltaForward(Stream&, const ScanDeltaForwardArgs& a) {
  const int64_t documents = a.documents.count();
  if (a.final_DGKV.defined() && documents < a.documents.capacity()) {
    a.final_DGKV.Rows(documents, a.documents.capacity()).Zero();
  }
  const int64_t heads = a.v_NGV.dim(1), width = a.v_NGV.dim(2);
  DispatchFloat(a.v_NGV.dtype(), [&]<class T>() {
    ForEachDeltaUnit(documents, heads, width, [&](const DeltaUnit& unit) {
      ForwardPass<T>(a, unit, Scratch::Restart()).Run();
    });
  });
}

}  // namespace lt2::cpu
