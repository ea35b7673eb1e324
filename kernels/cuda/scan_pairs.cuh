// One log-decay per row and channel of a chunk, and sums over pairs of rows under it.
//
// With G the cumulative log-decay of a channel and D_rj = exp(G_r - G_j), j <= r, the sums are
//   E_rj = sum_d x_rd y_jd D_rj,d   and their gradients   dx_r = sum_j W_rj y_j D_rj,
//                                                         dy_j = sum_r W_rj x_r D_rj.
// One matrix product needs one row a between j and r to split D_rj into exp(G_r - G_a) and
// exp(G_a - G_j), both at most 1 then. So rows come in tiles of 16: for a tile against the rows
// before it, a is its first row; for a tile against the rows after it, its last row. Inside a tile
// pairs are taken one by one. Any decay is safe.
#pragma once

#include "kernels/cuda/scan_chunk.cuh"

namespace lt2::cuda {

inline constexpr int kTilePairs = kTile * (kTile + 1) / 2;

// 64 channels at a time. kTwo: sums of a second x with the same y as well; without it, second
// arguments are unused.
template <class T, bool kTwo>
class ChannelPairs {
 public:
  static constexpr int kStride = kPanel + 1;
  static constexpr int kSumBytes = kPanel * kStride * 8;
  static constexpr int kPanelBytes = 3 * kPanelSize<T> * static_cast<int>(sizeof(T));
  static_assert(2 * kTiles * kTile * kTile * 4 <= kPanelBytes);
  static_assert(kPanelSize<float> * 4 <= 2 * kPanelSize<T> * static_cast<int>(sizeof(T)));

  // In shared memory: kSumBytes for G, and kPanelBytes that are free between calls.
  __device__ ChannelPairs(void* sums, void* panels)
      : sum_(static_cast<double*>(sums)), panels_(static_cast<T*>(panels)) {}

  // g [rows, columns], rows `stride` apart. All threads; between two __syncthreads().
  __device__ void Load(const float* g, int64_t stride, int rows, int columns) {
    const int c = threadIdx.x % kPanel, first = threadIdx.x / kPanel * kTile;
    double sum = 0;
    for (int r = first; r < first + kTile; ++r) {
      if (r < rows && c < columns) sum += double{g[r * stride + c]};
      sum_[r * kStride + c] = sum;
    }
    __syncthreads();
    double before = 0;
    for (int r = kTile - 1; r < first; r += kTile) before += sum_[r * kStride + c];
    __syncthreads();
    for (int r = first; r < first + kTile; ++r) sum_[r * kStride + c] += before;
  }

  __device__ float FromStart(int r, int c) const { return Exp(sum_[r * kStride + c]); }
  __device__ float ToEnd(int r, int c) const { return Between(kPanel - 1, r, c); }
  __device__ float Whole(int c) const { return Exp(sum_[(kPanel - 1) * kStride + c]); }
  // exp(G_r - G_j) of channel c, j <= r.
  __device__ float Between(int r, int j, int c) const {
    return Exp(sum_[r * kStride + c] - sum_[j * kStride + c]);
  }

  // qk += sums of q and k over these channels, kk += those of k and k; AddDiagonal once at the end
  // puts the pairs inside tiles there. What is above the diagonal has no meaning.
  __device__ void AddProducts(const T* q, const T* k, int columns, Accumulator& qk,
                              Accumulator& kk) {
    T *left_q = panels_, *left_k = left_q + kPanelSize<T>, *right = left_k + kPanelSize<T>;
    for (int tile = 1; tile < kTiles; ++tile) {
      const int anchor = tile * kTile;
      for (int i = threadIdx.x; i < (anchor + kTile) * kPanel; i += kPanelThreads) {
        const int r = i / kPanel, c = i % kPanel, at = r * kPanelStride<T> + c;
        if (r < anchor) {
          Put(right, at, Get(k, at) * Between(anchor, r, c));
        } else {
          const float factor = Between(r, anchor, c);
          Put(left_q, at, Get(q, at) * factor);
          if constexpr (kTwo) Put(left_k, at, Get(k, at) * factor);
        }
      }
      __syncthreads();
      Multiply<false, true>(qk, left_q, right, 0, columns, tile);
      if constexpr (kTwo) Multiply<false, true>(kk, left_k, right, 0, columns, tile);
      __syncthreads();
    }
    for (int i = 0; i < kOwn; ++i) {
      int tile, r, j;
      if (!OwnPair(i, &tile, &r, &j)) continue;
      const int row = tile * kTile + r, column = tile * kTile + j;
      for (int c = 0; c < columns; ++c) {
        const float factor = Get(k, column * kPanelStride<T> + c) * Between(row, column, c);
        own_q_[i] += Get(q, row * kPanelStride<T> + c) * factor;
        if constexpr (kTwo) own_k_[i] += Get(k, row * kPanelStride<T> + c) * factor;
      }
    }
  }
  __device__ void AddDiagonal(Accumulator& qk, Accumulator& kk) {
    float *of_q = reinterpret_cast<float*>(panels_), *of_k = of_q + kTiles * kTile * kTile;
    __syncthreads();
    for (int i = 0; i < kOwn; ++i) {
      int tile, r, j;
      if (!OwnPair(i, &tile, &r, &j)) continue;
      of_q[(tile * kTile + r) * kTile + j] = own_q_[i];
      if constexpr (kTwo) of_k[(tile * kTile + r) * kTile + j] = own_k_[i];
    }
    __syncthreads();
    const auto replace = [](Accumulator& c, const float* by) {
      ForEachPair(c, [&](int row, int column, float& x, float& y) {
        if (row / kTile != column / kTile) return;
        const float* at = by + row * kTile + column % kTile;
        if (column <= row) x = at[0];
        if (column + 1 <= row) y = at[1];
      });
    };
    replace(qk, of_q);
    if constexpr (kTwo) replace(kk, of_k);
    __syncthreads();
  }

  // With w the gradient of sums E over (x, y), dx and dy += their gradients, and likewise for
  // (x2, y); what is above the diagonal of w is unread. `free`: two panels that lie together.
  struct Gradients {
    const T *w, *x, *w2, *x2, *y;
    T* free;
  };
  __device__ void AddGradients(const Gradients& of, Accumulator& dx, Accumulator& dx2,
                               Accumulator& dy) {
    T *right = of.free, *right2 = right + kPanelSize<T>;
    Accumulator sum, sum2;
    for (int tile = 1; tile < kTiles; ++tile) {  // rows of dx against rows of y before them
      const int anchor = tile * kTile;
      for (int i = threadIdx.x; i < anchor * kPanel; i += kPanelThreads) {
        const int r = i / kPanel, c = i % kPanel, at = r * kPanelStride<T> + c;
        Put(right, at, Get(of.y, at) * Between(anchor, r, c));
      }
      __syncthreads();
      Multiply<false, false>(sum, of.w, right, 0, anchor, tile);
      if constexpr (kTwo) Multiply<false, false>(sum2, of.w2, right, 0, anchor, tile);
      __syncthreads();
    }
    const auto since_anchor = [&](Accumulator& from, Accumulator& to) {
      Combine(from, to, [&](int r, int c) { return Between(r, r / kTile * kTile, c); });
    };
    since_anchor(sum, dx);
    if constexpr (kTwo) since_anchor(sum2, dx2);
    sum = {};
    for (int tile = 0; tile + 1 < kTiles; ++tile) {  // rows of dy against rows of x after them
      const int anchor = (tile + 1) * kTile - 1;
      for (int i = (anchor + 1) * kPanel + threadIdx.x; i < kPanel * kPanel; i += kPanelThreads) {
        const int r = i / kPanel, c = i % kPanel, at = r * kPanelStride<T> + c;
        const float factor = Between(r, anchor, c);
        Put(right, at, Get(of.x, at) * factor);
        if constexpr (kTwo) Put(right2, at, Get(of.x2, at) * factor);
      }
      __syncthreads();
      Multiply<true, false>(sum, of.w, right, anchor + 1, kPanel, tile);
      if constexpr (kTwo) Multiply<true, false>(sum, of.w2, right2, anchor + 1, kPanel, tile);
      __syncthreads();
    }
    Combine(sum, dy, [&](int r, int c) { return Between(r / kTile * kTile + kTile - 1, r, c); });
    AddDiagonalGradients(of, dx, dx2, dy);
  }

 private:
  // to += factor(r, c) from.
  template <class Fn>
  __device__ static void Combine(Accumulator& from, Accumulator& to, const Fn& factor) {
    ForEachPair(
        from, [&](int r, int c, float& x, float& y) { x *= factor(r, c), y *= factor(r, c + 1); });
    Add(from, to);
  }
  __device__ static void Add(const Accumulator& from, Accumulator& to) {
#pragma unroll
    for (int i = 0; i < 16; ++i) to.at[i / 8][i / 4 % 2][i % 4] += from.at[i / 8][i / 4 % 2][i % 4];
  }

  // Pairs inside tiles: a thread has a tile's channel, and D as a running product of exp(g).
  __device__ void AddDiagonalGradients(const Gradients& of, Accumulator& dx, Accumulator& dx2,
                                       Accumulator& dy) {
    constexpr int kStride = kPanelStride<T>;
    const int c = threadIdx.x % kPanel, first = threadIdx.x / kPanel * kTile;
    float step[kTile], x[kTile], x2[kTile], own[kTile] = {}, own2[kTile] = {}, own_y[kTile];
#pragma unroll
    for (int r = 0; r < kTile; ++r) {
      const int row = first + r;
      step[r] = r == 0 ? 1 : Between(row, row - 1, c);
      x[r] = Get(of.x, row * kStride + c);
      if constexpr (kTwo) x2[r] = Get(of.x2, row * kStride + c);
    }
#pragma unroll
    for (int j = 0; j < kTile; ++j) {
      const float y = Get(of.y, (first + j) * kStride + c);
      float decay = 1, sum = 0;
#pragma unroll
      for (int r = j; r < kTile; ++r) {
        if (r > j) decay *= step[r];
        const float w = decay * Get(of.w, (first + r) * kStride + first + j);
        own[r] += w * y;
        sum += w * x[r];
        if constexpr (kTwo) {
          const float w2 = decay * Get(of.w2, (first + r) * kStride + first + j);
          own2[r] += w2 * y;
          sum += w2 * x2[r];
        }
      }
      own_y[j] = sum;
    }
    float* staged = reinterpret_cast<float*>(of.free);
    const auto add = [&](const float(&from)[kTile], Accumulator& to) {
      __syncthreads();
#pragma unroll
      for (int r = 0; r < kTile; ++r) staged[(first + r) * kPanelStride<float> + c] = from[r];
      __syncthreads();
      ForEachPair(to, [&](int r, int column, float& x, float& y) {
        const float2 pair = GetPair(staged, r, column);
        x += pair.x, y += pair.y;
      });
    };
    add(own, dx);
    if constexpr (kTwo) add(own2, dx2);
    add(own_y, dy);
  }

  static constexpr int kOwn = (kTiles * kTilePairs + kPanelThreads - 1) / kPanelThreads;

  __device__ static float Exp(double x) { return ExpOf<T>(static_cast<float>(x)); }

  // The thread's pair i: row r and row j <= r of a tile.
  __device__ static bool OwnPair(int i, int* tile, int* r, int* j) {
    const int at = i * kPanelThreads + threadIdx.x;
    if (at >= kTiles * kTilePairs) return false;
    *tile = at / kTilePairs;
    const int in_tile = at % kTilePairs;
    *r = 0;
    while ((*r + 1) * (*r + 2) / 2 <= in_tile) ++*r;
    *j = in_tile - *r * (*r + 1) / 2;
    return true;
  }

  double* sum_;  // G, in double: differences of large sums stay exact
  T* panels_;
  float own_q_[kOwn] = {}, own_k_[kOwn] = {};
};

// Sums of a chunk's rows per channel: to[r] (+)= at_end + sum over r' >= r of later[r'] + sum over
// j < r of earlier[j] (may be null). Both in shared memory, of stride kPanelStride<float>.
__device__ inline void StoreDecaySums(const float* later, const float* earlier, double at_end,
                                      float* to, int64_t stride, int rows, int columns, bool add) {
  __shared__ double totals[2][kTiles][kPanel];
  const int c = threadIdx.x % kPanel, tile = threadIdx.x / kPanel, first = tile * kTile;
  double sum_later = 0, sum_earlier = 0;
  for (int r = first; r < first + kTile; ++r) {
    sum_later += double{later[r * kPanelStride<float> + c]};
    if (earlier != nullptr) sum_earlier += double{earlier[r * kPanelStride<float> + c]};
  }
  __syncthreads();  // an earlier call's sums have been read
  totals[0][tile][c] = sum_later;
  totals[1][tile][c] = sum_earlier;
  __syncthreads();
  double after = at_end, before = sum_earlier;
  for (int t = kTiles - 1; t > tile; --t) after += totals[0][t][c];
  for (int t = 0; t < tile; ++t) before += totals[1][t][c];
  if (c >= columns) return;
  for (int r = first + kTile - 1; r >= first; --r) {
    after += double{later[r * kPanelStride<float> + c]};
    if (earlier != nullptr) before -= double{earlier[r * kPanelStride<float> + c]};
    if (r < rows) PutOrAdd(to + r * stride, c, static_cast<float>(after + before), add);
  }
}

}  // namespace lt2::cuda
