// Softmax attention of one query token of a group of heads, whose key rows are named run by run:
// what selected and compressed attention share.
//
// The group's heads lie along the vector lanes. `visible(emit)` calls emit(first, count) for each
// run of rows that the query sees; rows are taken in tiles of up to 64, copied together where they
// are not neighbours in memory.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/micro_gemm.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/simd.h"

namespace lt2::cpu {

// Rows of one key/value head, and the sizes of a group: `heads` query heads read them.
template <class T>
struct GroupRows {
  const T *k, *v;  // row j begins at j * stride
  int64_t k_stride, v_stride;
  int64_t D, E, heads;
  T scale;
};

inline constexpr int64_t kRowTile = 64;

// Up to 64 of a query's rows: k [count, >= D], v [count, >= E].
template <class T>
struct RowTile {
  int64_t rows[kRowTile];
  int64_t count = 0;
  const T *k, *v;
  int64_t k_stride, v_stride;
};

template <class T>
class RowTiler {
 public:
  RowTiler(const GroupRows<T>& group, Scratch& scratch)
      : group_(group),
        k_stride_(PadToLanes<T>(group.D)),
        v_stride_(PadToLanes<T>(group.E)),
        k_(scratch.Take<T>(kRowTile * k_stride_)),
        v_(scratch.Take<T>(kRowTile * v_stride_)) {}

  template <class Visible, class Visit>
  void ForEach(const Visible& visible, const Visit& visit) {
    tile_.count = 0;
    visible([&](int64_t first, int64_t count) {
      for (int64_t j = first; j < first + count; ++j) {
        tile_.rows[tile_.count++] = j;
        if (tile_.count == kRowTile) Flush(visit);
      }
    });
    if (tile_.count > 0) Flush(visit);
  }

 private:
  template <class Visit>
  void Flush(const Visit& visit) {
    bool neighbours = true;
    for (int64_t n = 1; n < tile_.count; ++n) {
      neighbours &= tile_.rows[n] == tile_.rows[n - 1] + 1;
    }
    Gather(group_.k, group_.k_stride, group_.D, neighbours, k_, k_stride_, &tile_.k,
           &tile_.k_stride);
    Gather(group_.v, group_.v_stride, group_.E, neighbours, v_, v_stride_, &tile_.v,
           &tile_.v_stride);
    visit(tile_);
    tile_.count = 0;
  }
  // Rows of whole vectors are read where they are.
  void Gather(const T* from, int64_t stride, int64_t width, bool neighbours, T* copy,
              int64_t padded, const T** rows, int64_t* rows_stride) const {
    if (neighbours && padded == width) {
      *rows = from + tile_.rows[0] * stride;
      *rows_stride = stride;
      return;
    }
    for (int64_t n = 0; n < tile_.count; ++n) {
      std::copy_n(from + tile_.rows[n] * stride, width, copy + n * padded);
    }
    *rows = copy;
    *rows_stride = padded;
  }

  const GroupRows<T>& group_;
  int64_t k_stride_, v_stride_;
  T *k_, *v_;
  RowTile<T> tile_;
};

// to [width, lanes] = factor · from [heads, width]ᵀ, zero beyond `heads`.
template <class T>
void PackHeads(const T* from, int64_t heads, int64_t width, T factor, int64_t lanes, T* to) {
  for (int64_t d = 0; d < width; ++d) {
    for (int64_t h = 0; h < heads; ++h) to[d * lanes + h] = factor * from[h * width + d];
    std::fill(to + d * lanes + heads, to + (d + 1) * lanes, T(0));
  }
}

// to [heads, padded] = factor · from [heads, width].
template <class T>
void PadHeads(const T* from, int64_t heads, int64_t width, T factor, int64_t padded, T* to) {
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t d = 0; d < width; ++d) to[h * padded + d] = factor * from[h * width + d];
    std::fill(to + h * padded + width, to + (h + 1) * padded, T(0));
  }
}

// o [heads, E] and, where wanted, lse [heads] from q [heads, D].
template <class T, class Visible>
void GroupForward(const GroupRows<T>& group, const T* q, const Visible& visible, T* o, T* lse) {
  const int64_t heads = group.heads, D = group.D, E = group.E, lanes = PadToLanes<T>(heads);
  Scratch& scratch = Scratch::Restart();
  RowTiler<T> tiler(group, scratch);
  T* qT = scratch.Take<T>(D * lanes);
  T* s = scratch.Take<T>(kRowTile * lanes);
  T *m = scratch.Take<T>(lanes), *l = scratch.Take<T>(lanes), *largest = scratch.Take<T>(lanes);
  PackHeads(q, heads, D, group.scale, lanes, qT);
  std::fill(m, m + lanes, T(-1e30));  // finite, so that (m - m) is not NaN; exp of it is 0
  std::fill(l, l + lanes, T(0));
  std::fill(o, o + heads * E, T(0));
  tiler.ForEach(visible, [&](const RowTile<T>& tile) {
    MicroGemm<false>(
        MicroGemmArgs<T>{tile.count, lanes, D, tile.k, tile.k_stride, 1, qT, lanes, s, lanes});
    std::copy(m, m + lanes, largest);
    for (int64_t n = 0; n < tile.count; ++n) {
#pragma omp simd
      for (int64_t h = 0; h < lanes; ++h) {
        const T s_nh = s[n * lanes + h];
        largest[h] = s_nh > largest[h] ? s_nh : largest[h];
      }
    }
#pragma omp simd
    for (int64_t h = 0; h < lanes; ++h) {
      const T correction = Exp(m[h] - largest[h]);
      l[h] *= correction;
      m[h] = largest[h];
      largest[h] = correction;
    }
    for (int64_t n = 0; n < tile.count; ++n) {
#pragma omp simd
      for (int64_t h = 0; h < lanes; ++h) {
        const T p = Exp(s[n * lanes + h] - m[h]);
        s[n * lanes + h] = p;
        l[h] += p;
      }
    }
    for (int64_t h = 0; h < heads; ++h) {
      if (largest[h] == T(1)) continue;
#pragma omp simd
      for (int64_t e = 0; e < E; ++e) o[h * E + e] *= largest[h];
    }
    MicroGemm<true>(
        MicroGemmArgs<T>{heads, E, tile.count, s, 1, lanes, tile.v, tile.v_stride, o, E});
  });
  for (int64_t h = 0; h < heads; ++h) {
    const bool any = l[h] != T(0);  // NaN stays NaN
    const T inverse = any ? T(1) / l[h] : T(0);
    for (int64_t e = 0; e < E; ++e) o[h * E + e] *= inverse;
    if (lse != nullptr) {
      lse[h] = any ? m[h] + std::log(l[h]) : -std::numeric_limits<T>::infinity();
    }
  }
}

// A query's own values, and where its gradient and those of the rows go; null: not wanted.
template <class T>
struct GroupBackwardArgs {
  const T *q, *dout, *o, *lse;  // [heads, D], [heads, E], [heads, E], [heads]
  T* dq;                        // [heads, D]
  bool accumulate_dq;
  T *dk, *dv;  // rows like those of k and v, added to
};

template <class T, class Visible>
void GroupBackward(const GroupRows<T>& group, const GroupBackwardArgs<T>& args,
                   const Visible& visible) {
  const int64_t heads = group.heads, D = group.D, E = group.E, lanes = PadToLanes<T>(heads);
  const int64_t wide_D = PadToLanes<T>(D), wide_E = PadToLanes<T>(E);
  Scratch& scratch = Scratch::Restart();
  RowTiler<T> tiler(group, scratch);
  T *qT = scratch.Take<T>(D * lanes), *doT = scratch.Take<T>(E * lanes);
  T *q = scratch.Take<T>(heads * wide_D), *dout = scratch.Take<T>(heads * wide_E);
  T *p = scratch.Take<T>(kRowTile * lanes), *ds = scratch.Take<T>(kRowTile * lanes);
  T *delta = scratch.Take<T>(lanes), *lse = scratch.Take<T>(lanes);
  T *dq = scratch.Take<T>(heads * D), *to_row = scratch.Take<T>(kRowTile * std::max(D, E));
  bool packed = false;
  std::fill(dq, dq + heads * D, T(0));
  const auto pack = [&] {
    PackHeads(args.q, heads, D, group.scale, lanes, qT);
    PackHeads(args.dout, heads, E, T(1), lanes, doT);
    PadHeads(args.q, heads, D, group.scale, wide_D, q);
    PadHeads(args.dout, heads, E, T(1), wide_E, dout);
    std::fill(delta, delta + lanes, T(0));
    std::fill(lse, lse + lanes, T(0));
    for (int64_t h = 0; h < heads; ++h) {
      T sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t e = 0; e < E; ++e) sum += args.o[h * E + e] * args.dout[h * E + e];
      delta[h] = sum;
      lse[h] = args.lse[h];
    }
    packed = true;
  };
  const auto add_to_rows = [&](const RowTile<T>& tile, const T* weights, const T* b, int64_t width,
                               int64_t padded, T* to, int64_t stride) {
    if (to == nullptr) return;
    MicroGemm<false>(
        MicroGemmArgs<T>{tile.count, width, heads, weights, lanes, 1, b, padded, to_row, width});
    for (int64_t n = 0; n < tile.count; ++n) {
      T* row = to + tile.rows[n] * stride;
#pragma omp simd
      for (int64_t d = 0; d < width; ++d) row[d] += to_row[n * width + d];
    }
  };
  tiler.ForEach(visible, [&](const RowTile<T>& tile) {
    if (!packed) pack();
    MicroGemm<false>(
        MicroGemmArgs<T>{tile.count, lanes, D, tile.k, tile.k_stride, 1, qT, lanes, p, lanes});
    MicroGemm<false>(
        MicroGemmArgs<T>{tile.count, lanes, E, tile.v, tile.v_stride, 1, doT, lanes, ds, lanes});
    for (int64_t n = 0; n < tile.count; ++n) {
#pragma omp simd
      for (int64_t h = 0; h < lanes; ++h) {
        const T p_nh = Exp(p[n * lanes + h] - lse[h]);
        p[n * lanes + h] = p_nh;
        ds[n * lanes + h] = p_nh * (ds[n * lanes + h] - delta[h]);
      }
    }
    add_to_rows(tile, p, dout, E, wide_E, args.dv, group.v_stride);
    add_to_rows(tile, ds, q, D, wide_D, args.dk, group.k_stride);
    if (args.dq != nullptr) {
      MicroGemm<true>(
          MicroGemmArgs<T>{heads, D, tile.count, ds, 1, lanes, tile.k, tile.k_stride, dq, D});
    }
  });
  if (args.dq == nullptr) return;
  for (int64_t i = 0; i < heads * D; ++i) {
    const T value = group.scale * dq[i];
    args.dq[i] = args.accumulate_dq ? args.dq[i] + value : value;
  }
}

}  // namespace lt2::cpu
