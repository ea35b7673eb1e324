// How the sequential passes of the scans are spread over threads.
//
// Documents and value heads are independent, and so are the state's columns: where there are too
// few of the former, a head's value lanes are cut into tiles, each repeating the work on keys. An
// element's arithmetic is the same in every cut.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/scan_rows.h"

namespace lt2::cpu {

// One piece of a sequential pass: lanes [begin, begin + count) of one head of one document.
struct ScanUnit {
  int64_t document, head, begin, count;
};

// A unit's lanes of states x [·, heads, K, V] and of values x [N, heads, V], to and from scratch of
// stride ld. Undefined tensors, and state -1, are zero and take nothing.
template <class T>
struct ScanLanes {
  ScanLanes(const ScanUnit& of, const Tensor& q_NHK, const Tensor& v_NGV)
      : unit(of),
        heads(v_NGV.dim(1)),
        k(q_NHK.dim(2)),
        v(v_NGV.dim(2)),
        ld(PadToLanes<T>(of.count)) {}

  // to [K, ld]: state i.
  void LoadState(const Tensor& x, int64_t i, T* to) const {
    LoadRows<T>(State(x, i), v, k, unit.count, k, ld, to);
  }
  void StoreState(const T* from, const Tensor& x, int64_t i, bool accumulate = false) const {
    if (T* to = State(x, i)) StoreRows(from, ld, k, unit.count, to, v, accumulate);
  }
  // to [padded, ld]: a chunk's rows.
  void LoadValues(const Tensor& x, const ChunkRows& rows, T* to) const {
    LoadRows<T>(Values(x, rows.token), heads * v, rows.rows, unit.count, rows.padded, ld, to);
  }
  void StoreValues(const T* from, const Tensor& x, const ChunkRows& rows,
                   bool accumulate = false) const {
    T* to = Values(x, rows.token);
    if (to != nullptr) StoreRows(from, ld, rows.rows, unit.count, to, heads * v, accumulate);
  }

  const ScanUnit unit;
  const int64_t heads, k, v, ld;

 private:
  T* State(const Tensor& x, int64_t i) const {
    if (!x.defined() || i < 0) return nullptr;
    return x.data<T>() + (i * heads + unit.head) * k * v + unit.begin;
  }
  T* Values(const Tensor& x, int64_t token) const {
    return x.defined() ? HeadRows<T>(x, token, unit.head) + unit.begin : nullptr;
  }
};

// The number of tiles that ends first, if a tile's cost is this share plus the rest by lanes.
inline int64_t BestTiles(int64_t units, int64_t value_width) {
  constexpr double kKeyShare = 0.2;
  constexpr int64_t kFewestLanes = 32;
  const int64_t threads = omp_get_max_threads();
  const auto time = [&](int64_t tiles) {
    const int64_t rounds = (units * tiles + threads - 1) / threads;
    return static_cast<double>(rounds) * (kKeyShare + (1 - kKeyShare) / static_cast<double>(tiles));
  };
  int64_t best = 1;
  for (int64_t tiles = 2; tiles * kFewestLanes <= value_width; ++tiles) {
    if (time(tiles) < time(best)) best = tiles;
  }
  return best;
}

// fn(ScanUnit) for all of them, in parallel.
template <class Fn>
void ForEachScanUnit(int64_t documents, int64_t heads, int64_t value_width, const Fn& fn) {
  constexpr int64_t kLaneStep = 16;
  const int64_t tiles = BestTiles(documents * heads, value_width);
  const int64_t lanes = (value_width + tiles * kLaneStep - 1) / (tiles * kLaneStep) * kLaneStep;
#pragma omp parallel for schedule(dynamic) collapse(3)
  for (int64_t d = 0; d < documents; ++d) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t tile = 0; tile < tiles; ++tile) {
        const int64_t begin = tile * lanes, count = std::min(lanes, value_width - begin);
        if (count > 0) fn(ScanUnit{d, h, begin, count});
      }
    }
  }
}

}  // namespace lt2::cpu
