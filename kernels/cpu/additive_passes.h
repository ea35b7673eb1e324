// The sequential passes of the additive scans over the chunks of a document.
//
// Forward   O = q_read S_in + P V,  S_out = decay S_in + k_write^T V
// Reverse   dV = k_write dS_out + P^T dO,  dS_in = decay dS_out + q_read^T dO
// The operands are those of a Chunk (scalar_chunk.h, channel_chunk.h). The reverse pass leaves
// dS_out of every chunk for the other gradients (additive_gradients.h), which are then independent
// of each other.
#pragma once

#include "kernels/cpu/chunk_products.h"
#include "kernels/cpu/scan_units.h"
#include "kernels/cpu/scratch.h"
#include "kernels/scan_additive.h"

namespace lt2::cpu {

template <class T, class Chunk>
class AdditiveForward {
 public:
  AdditiveForward(const ScanAdditiveForwardArgs& args, const ScanUnit& unit, Scratch& scratch)
      : a_(args),
        at_(unit, args.q_NHK, args.v_NGV),
        chunk_(scratch, at_.k),
        state_(scratch.Take<T>(at_.k * at_.ld)),
        v_(scratch.Take<T>(kChunk * at_.ld)),
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
    at_.LoadValues(a_.v_NGV, rows, v_);

    if (a_.o_NGV.defined()) {
      Product<false>(n, ld, k, chunk_.q_read, chunk_.ld, state_, ld, o_, ld);
      LowerTimes<true>(n, ld, chunk_.attention, v_, ld, o_);
      at_.StoreValues(o_, a_.o_NGV, rows);
    }

    chunk_.DecayState(ld, state_);
    ProductTransposed<true>(k, ld, n, chunk_.k_write, chunk_.ld, v_, ld, state_, ld);
  }

  const ScanAdditiveForwardArgs& a_;
  const ScanLanes<T> at_;
  Chunk chunk_;
  T *state_, *v_, *o_;  // [K, ld], [kChunk, ld] × 2
};

template <class T, class Chunk>
class AdditiveReverse {
 public:
  AdditiveReverse(const ScanAdditiveBackwardArgs& args, const ScanUnit& unit, Scratch& scratch)
      : a_(args),
        at_(unit, args.q_NHK, args.v_NGV),
        chunk_(scratch, at_.k),
        dstate_(scratch.Take<T>(at_.k * at_.ld)),
        do_(scratch.Take<T>(kChunk * at_.ld)),
        dv_(scratch.Take<T>(kChunk * at_.ld)) {}

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

    if (a_.dv_NGV.to.defined()) {
      Product<false>(n, ld, k, chunk_.k_write, chunk_.ld, dstate_, ld, dv_, ld);
      AddLowerTransposedTimes(n, ld, chunk_.attention, do_, ld, dv_);
      at_.StoreValues(dv_, a_.dv_NGV.to, rows, a_.dv_NGV.accumulate);
    }

    chunk_.DecayState(ld, dstate_);
    ProductTransposed<true>(k, ld, n, chunk_.q_read, chunk_.ld, do_, ld, dstate_, ld);
  }

  const ScanAdditiveBackwardArgs& a_;
  const ScanLanes<T> at_;
  Chunk chunk_;
  T *dstate_, *do_, *dv_;  // [K, ld], [kChunk, ld] × 2
};

}  // namespace lt2::cpu
