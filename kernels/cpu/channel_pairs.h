// One log-decay per row and channel of a chunk, and sums over pairs of rows under it.
//
// With G the cumulative log-decay of a channel and D_rj = exp(G_r - G_j), j <= r, the sums are
//   E_rj = sum_d x_rd y_jd D_rj,d   and their gradients   dx_r = sum_j W_rj y_j D_rj,
//                                                         dy_j = sum_r W_rj x_r D_rj.
// One matrix product needs one row a between j and r to split D_rj into exp(G_r - G_a) and
// exp(G_a - G_j), both at most 1 then. So rows come in tiles of kBlock: for a tile against the rows
// before it, a is its first row; for a tile against the rows after it, its last row. Inside a tile
// D is a running product of exp(g): at most kBlock factors, each at most 1. Any decay is safe.
#pragma once

#include <algorithm>

#include "kernels/cpu/chunk_products.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/transpose.h"

namespace lt2::cpu {

template <class T>
class ChannelPairs {
 public:
  ChannelPairs(Scratch& scratch, int64_t width)
      : width_(width),
        ld_(PadToLanes<T>(width)),
        sum_(scratch.Take<double>(kChunk * ld_)),
        step_(scratch.Take<T>(kChunk * ld_)),
        left_(scratch.Take<T>(kChunk * ld_)),
        right_(scratch.Take<T>(kChunk * ld_)),
        transposed_(scratch.Take<T>(ld_ * kChunk)),
        running_(scratch.Take<T>(ld_)) {}

  // g: [rows, width], stride apart. Rows past the chunk's end and padded channels do not decay.
  void Load(const T* g, int64_t stride, const ChunkRows& rows) {
    padded_ = rows.padded;
    LoadRows(g, stride, rows.rows, width_, padded_, ld_, step_);
    for (int64_t r = 0; r < padded_; ++r) {
      double* sum_r = sum_ + r * ld_;
      T* step_r = step_ + r * ld_;
#pragma omp simd
      for (int64_t d = 0; d < ld_; ++d) {
        sum_r[d] = (r > 0 ? sum_r[d - ld_] : 0.0) + static_cast<double>(step_r[d]);
        step_r[d] = Exp(step_r[d]);
      }
    }
  }

  // to = factor exp(G) x, and exp(G_C - G) x, over [padded, ld]. to may be x.
  void ScaleFromStart(T factor, const T* x, T* to) const {
    for (int64_t r = 0; r < padded_; ++r) {
      const double* sum_r = sum_ + r * ld_;
#pragma omp simd
      for (int64_t d = 0; d < ld_; ++d) {
        to[r * ld_ + d] = factor * Exp(static_cast<T>(sum_r[d])) * x[r * ld_ + d];
      }
    }
  }
  void ScaleToEnd(const T* x, T* to) const { ScaleUpTo(padded_ - 1, 0, padded_, x, to); }

  // to [ld] = exp(G_C).
  void Whole(T* to) const {
    const double* sum_r = sum_ + (padded_ - 1) * ld_;
#pragma omp simd
    for (int64_t d = 0; d < ld_; ++d) to[d] = Exp(static_cast<T>(sum_r[d]));
  }

  // e = scale E, lower triangle, zero above it up to whole blocks; stride kChunk.
  void Pairs(T scale, const T* x, const T* y, T* e) {
    for (int64_t i = 0; i < padded_; i += kBlock) {
      if (i > 0) {
        ScaleSince(i, i, i + kBlock, x, left_);
        ScaleUpTo(i, 0, i, y, right_);
        for (int64_t j = 0; j < i; j += kMicroLanes<T>) {
          Transpose(kMicroLanes<T>, ld_, right_ + j * ld_, ld_, transposed_ + j, kChunk);
        }
        Product<false>(kBlock, i, width_, left_ + i * ld_, ld_, transposed_, kChunk, e + i * kChunk,
                       kChunk);
      }
      for (int64_t j = i; j < i + kBlock; ++j) {
        for (int64_t r = i; r < j; ++r) e[r * kChunk + j] = 0;
        std::copy(y + j * ld_, y + (j + 1) * ld_, running_);
        for (int64_t r = j; r < i + kBlock; ++r) {
          if (r > j) Multiply(step_ + r * ld_, running_);
          e[r * kChunk + j] = Dot(x + r * ld_, running_, ld_);
        }
      }
      for (int64_t r = i; r < i + kBlock; ++r) Scale(scale, i + kBlock, e + r * kChunk);
    }
  }

  // dx += and dy += the gradients, given w = W in the lower triangle (what is above it is unread).
  void AddPairGradients(const T* w, const T* x, const T* y, T* dx, T* dy) {
    for (int64_t i = 0; i < padded_; i += kBlock) {
      if (i > 0) {
        ScaleUpTo(i, 0, i, y, right_);
        Product<false>(kBlock, ld_, i, w + i * kChunk, kChunk, right_, ld_, left_ + i * ld_, ld_);
        ScaleSince(i, i, i + kBlock, left_, left_);
        Add(left_ + i * ld_, kBlock * ld_, dx + i * ld_);
      }
      const int64_t after = i + kBlock;
      if (after < padded_) {
        ScaleSince(after - 1, after, padded_, x, right_);
        ProductTransposed<false>(kBlock, ld_, padded_ - after, w + after * kChunk + i, kChunk,
                                 right_ + after * ld_, ld_, left_ + i * ld_, ld_);
        ScaleUpTo(after - 1, i, after, left_, left_);
        Add(left_ + i * ld_, kBlock * ld_, dy + i * ld_);
      }
      for (int64_t j = i; j < after; ++j) AddColumnGradients(j, after, w, x, y, dx, dy);
    }
  }

 private:
  // Rows [begin, end): to = exp(G_r - G_anchor) x, anchor <= r; and exp(G_anchor - G_r) x,
  // r <= anchor.
  void ScaleSince(int64_t anchor, int64_t begin, int64_t end, const T* x, T* to) const {
    ScaleDifference(sum_ + anchor * ld_, 1.0, begin, end, x, to);
  }
  void ScaleUpTo(int64_t anchor, int64_t begin, int64_t end, const T* x, T* to) const {
    ScaleDifference(sum_ + anchor * ld_, -1.0, begin, end, x, to);
  }
  void ScaleDifference(const double* anchor, double sign, int64_t begin, int64_t end, const T* x,
                       T* to) const {
    for (int64_t r = begin; r < end; ++r) {
      const double* sum_r = sum_ + r * ld_;
#pragma omp simd
      for (int64_t d = 0; d < ld_; ++d) {
        to[r * ld_ + d] = Exp(static_cast<T>(sign * (sum_r[d] - anchor[d]))) * x[r * ld_ + d];
      }
    }
  }

  // The pairs (r, j) of j's tile, which ends at `end`.
  void AddColumnGradients(int64_t j, int64_t end, const T* w, const T* x, const T* y, T* dx,
                          T* dy) {
    const T* y_j = y + j * ld_;
    T *dy_j = dy + j * ld_, *d = running_;
    std::fill(d, d + ld_, T(1));
    for (int64_t r = j; r < end; ++r) {
      if (r > j) Multiply(step_ + r * ld_, d);
      const T w_rj = w[r * kChunk + j];
      const T* x_r = x + r * ld_;
      T* dx_r = dx + r * ld_;
#pragma omp simd
      for (int64_t i = 0; i < ld_; ++i) {
        const T weight = w_rj * d[i];
        dx_r[i] += weight * y_j[i];
        dy_j[i] += weight * x_r[i];
      }
    }
  }

  void Multiply(const T* by, T* x) const {
#pragma omp simd
    for (int64_t i = 0; i < ld_; ++i) x[i] *= by[i];
  }
  static void Add(const T* from, int64_t n, T* to) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) to[i] += from[i];
  }

  const int64_t width_, ld_;
  int64_t padded_ = 0;
  double* sum_;       // G, in double: differences of large sums stay exact
  T* step_;           // exp(g)
  T *left_, *right_;  // rows scaled to or from an anchor
  T* transposed_;     // right_, stride kChunk
  T* running_;        // one row
};

}  // namespace lt2::cpu
