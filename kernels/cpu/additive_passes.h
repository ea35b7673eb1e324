// The sequential passes of the additive scans over the chunks of a document.
//
// Forward   O = q_read S_in + P V,  S_out = decay S_in + k_write^T V
// Reverse   dV = k_write dS_out + P^T dO,  dS_in = decay dS_out + q_read^T dO
// The operands are those of a Chunk (scalar_chunk.h, channel_chunk.h). The reverse pass leaves
// dS_out of every chunk for the other gradients (additive_gradients.h), which are then independent
// of each other.
#pragma once

#include "kernels/cpu/chunk_products.h"
#include "kernels/cpu/scan_delta_passes.h"
#include "kernels/cpu/scratch.h"

namespace lt2::cpu {

// A state's lanes and the value rows that belong to them.
struct AdditiveLanes {
  DeltaUnit unit;
  int64_t heads, k, v;

  // State i of x [·, heads, K, V].
  template <class T>
  T* State(const Tensor& x, int64_t i) const {
    if (!x.defined()) return nullptr;
    return x.data<T>() + (i * heads + unit.head) * k * v + unit.begin;
  }
  // Rows from `token` of x [N, heads, V].
  template <class T>
  T* Values(const Tensor& x, int64_t token) const {
    return x.defined() ? HeadRows<T>(x, token, unit.head) + unit.begin : nullptr;
  }
};

template <class T, class Chunk, class Args>
class AdditiveForward {
 public:
  AdditiveForward(const Args& args, const DeltaUnit& unit, Scratch& scratch)
      : a_(args),
        at_{unit, args.v_NGV.dim(1), args.q_NHK.dim(2), args.v_NGV.dim(2)},
        ld_(PadToLanes<T>(unit.count)),
        chunk_(scratch, at_.k),
        state_(scratch.Take<T>(at_.k * ld_)),
        v_(scratch.Take<T>(kChunk * ld_)),
        o_(scratch.Take<T>(kChunk * ld_)) {}

  void Run() {
    LoadRows<T>(at_.template State<T>(a_.initial_DGKV, at_.unit.document), at_.v, at_.k,
                at_.unit.count, at_.k, ld_, state_);
    const int32_t* first = a_.documents.first_chunks().template data<int32_t>() + at_.unit.document;
    for (int64_t chunk = first[0]; chunk < first[1]; ++chunk) RunChunk(chunk);
    Save(a_.final_DGKV, at_.unit.document);
  }

 private:
  void Save(const Tensor& x, int64_t i) const {
    if (T* to = at_.template State<T>(x, i)) {
      StoreRows(state_, ld_, at_.k, at_.unit.count, to, at_.v);
    }
  }

  void RunChunk(int64_t chunk) {
    const ChunkRows rows = RowsOfChunk(a_.documents, chunk);
    const int64_t n = rows.padded, stride = at_.heads * at_.v;
    Save(a_.states_CGKV, chunk);
    chunk_.Load(a_, rows, at_.unit.head);
    chunk_.PrepareScan();
    LoadRows<T>(at_.template Values<T>(a_.v_NGV, rows.token), stride, rows.rows, at_.unit.count, n,
                ld_, v_);
    Product<false>(n, ld_, at_.k, chunk_.q_read, chunk_.ld, state_, ld_, o_, ld_);
    LowerTimes<true>(n, ld_, chunk_.attention, v_, ld_, o_);
    StoreRows(o_, ld_, rows.rows, at_.unit.count, at_.template Values<T>(a_.o_NGV, rows.token),
              stride);
    chunk_.DecayState(ld_, state_);
    ProductTransposed<true>(at_.k, ld_, n, chunk_.k_write, chunk_.ld, v_, ld_, state_, ld_);
  }

  const Args& a_;
  const AdditiveLanes at_;
  const int64_t ld_;
  Chunk chunk_;
  T *state_, *v_, *o_;  // [K, ld], [kChunk, ld] × 2
};

template <class T, class Chunk, class Args>
class AdditiveReverse {
 public:
  AdditiveReverse(const Args& args, const DeltaUnit& unit, Scratch& scratch)
      : a_(args),
        at_{unit, args.v_NGV.dim(1), args.q_NHK.dim(2), args.v_NGV.dim(2)},
        ld_(PadToLanes<T>(unit.count)),
        chunk_(scratch, at_.k),
        dstate_(scratch.Take<T>(at_.k * ld_)),
        do_(scratch.Take<T>(kChunk * ld_)),
        dv_(scratch.Take<T>(kChunk * ld_)) {}

  void Run() {
    LoadRows<T>(at_.template State<T>(a_.dfinal_DGKV, at_.unit.document), at_.v, at_.k,
                at_.unit.count, at_.k, ld_, dstate_);
    const int32_t* first = a_.documents.first_chunks().template data<int32_t>() + at_.unit.document;
    for (int64_t chunk = first[1] - 1; chunk >= first[0]; --chunk) RunChunk(chunk);
    if (T* to = at_.template State<T>(a_.dinitial_DGKV.to, at_.unit.document)) {
      StoreRows(dstate_, ld_, at_.k, at_.unit.count, to, at_.v, a_.dinitial_DGKV.accumulate);
    }
  }

 private:
  void RunChunk(int64_t chunk) {
    const ChunkRows rows = RowsOfChunk(a_.documents, chunk);
    const int64_t n = rows.padded, stride = at_.heads * at_.v;
    StoreRows(dstate_, ld_, at_.k, at_.unit.count, at_.template State<T>(a_.dstates_CGKV, chunk),
              at_.v);
    chunk_.Load(a_, rows, at_.unit.head);
    chunk_.PrepareScan();
    LoadRows<T>(at_.template Values<T>(a_.do_NGV, rows.token), stride, rows.rows, at_.unit.count, n,
                ld_, do_);
    if (T* to = at_.template Values<T>(a_.dv_NGV.to, rows.token)) {
      Product<false>(n, ld_, at_.k, chunk_.k_write, chunk_.ld, dstate_, ld_, dv_, ld_);
      AddLowerTransposedTimes(n, ld_, chunk_.attention, do_, ld_, dv_);
      StoreRows(dv_, ld_, rows.rows, at_.unit.count, to, stride, a_.dv_NGV.accumulate);
    }
    chunk_.DecayState(ld_, dstate_);
    ProductTransposed<true>(at_.k, ld_, n, chunk_.q_read, chunk_.ld, do_, ld_, dstate_, ld_);
  }

  const Args& a_;
  const AdditiveLanes at_;
  const int64_t ld_;
  Chunk chunk_;
  T *dstate_, *do_, *dv_;  // [K, ld], [kChunk, ld] × 2
};

}  // namespace lt2::cpu
