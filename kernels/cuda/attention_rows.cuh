// Softmax attention of every query to rows of keys and values that it names, plainly: a warp takes
// a query's head, over 32 rows at a time.
//
//   struct Seen {  // or Readers, of a row: which queries name it
//     struct List { int64_t count; __device__ int64_t operator()(int64_t n) const; };
//     __device__ List Of(int64_t query, int64_t g) const;
//   };
//
// List(n), n < count, is the row, or -1: none.
#pragma once

#include <cmath>

#include "kernels/cuda/attention_plain.cuh"

namespace lt2::cuda {

// Row r of head g of k begins at (r G + g) D; so do queries' of H heads.
template <class T>
struct RowAttention {
  const T *q, *k, *v, *dout;
  const float *lse, *delta;  // [queries, H]: of forward, and do · o
  int64_t queries, H, G, D, E;
  int share;  // H / G
  float scale;

  __device__ const T* q_row(int64_t i, int64_t h) const { return q + (i * H + h) * D; }
  __device__ const T* do_row(int64_t i, int64_t h) const { return dout + (i * H + h) * E; }
  __device__ const T* k_row(int64_t j, int64_t g) const { return k + (j * G + g) * D; }
  __device__ const T* v_row(int64_t j, int64_t g) const { return v + (j * G + g) * E; }
};

// Of a warp, in shared memory: 32 rows with their weights, and `width` sums.
struct RowSpace {
  int* rows;
  float *weights, *sums;

  static int Bytes(int64_t width) {
    static_assert(kPlainWarps * (64 + gpu::kMostPlainAttention) * sizeof(float) <= 48 * 1024);
    CHECK_LE(width, gpu::kMostPlainAttention) << "channels of a query and a value on the GPU";
    return static_cast<int>(kPlainWarps * (64 + width) * sizeof(float));
  }
  __device__ explicit RowSpace(int64_t width) {
    float* own = reinterpret_cast<float*>(DynamicShared()) + threadIdx.x / 32 * (64 + width);
    rows = reinterpret_cast<int*>(own);
    weights = own + 32;
    sums = own + 64;
    for (int64_t c = threadIdx.x % 32; c < width; c += 32) sums[c] = 0;
    __syncwarp();
  }
  // to = shrink · to + sum of weight · row over the lanes' rows, `stride` apart; row -1: none.
  template <class T>
  __device__ void Add(float weight, int64_t row, const T* from, int64_t stride, int64_t width,
                      float shrink, float* to) const {
    weights[threadIdx.x % 32] = weight;
    rows[threadIdx.x % 32] = static_cast<int>(row);
    __syncwarp();
    for (int64_t c = threadIdx.x % 32; c < width; c += 32) {
      float sum = to[c] * shrink;
#pragma unroll 8
      for (int n = 0; n < 32; ++n) {
        if (rows[n] >= 0) sum += weights[n] * Get(from, rows[n] * stride + c);
      }
      to[c] = sum;
    }
    __syncwarp();
  }
};

// Calls fn(row) with the lane's row of each 32, -1 for none; not where all have none.
template <class List, class Fn>
__device__ inline void ForEachRow(const List& list, int64_t first, int64_t step, const Fn& fn) {
  for (int64_t n = first; n < list.count; n += step) {
    const int64_t at = n + threadIdx.x % 32;
    const int64_t row = at < list.count ? list(at) : -1;
    if (!__all_sync(~0u, row < 0)) fn(row);
  }
}

// lse may be null.
template <class T, class Seen>
__global__ void __launch_bounds__(kPlainThreads)
    RowsForward(RowAttention<T> in, Seen seen, T* o_NHE, float* lse_NH) {
  const int64_t i = int64_t{blockIdx.x} * kPlainWarps + threadIdx.x / 32;
  const int64_t h = blockIdx.y, g = blockIdx.y / in.share, ih = i * in.H + h;
  if (i >= in.queries) return;
  const RowSpace space(in.E);
  float m = -INFINITY, l = 0;
  ForEachRow(seen.Of(i, g), 0, 32, [&](int64_t row) {
    const float s = row >= 0 ? in.scale * Dot(in.q_row(i, h), in.k_row(row, g), in.D) : -INFINITY;
    const float most = fmaxf(m, WarpMax(s)), shrink = expf(m - most), p = expf(s - most);
    l = l * shrink + WarpSum(p);
    m = most;
    space.Add(p, row, in.v_row(0, g), in.G * in.E, in.E, shrink, space.sums);
  });
  const float inverse = l == 0 ? 0 : 1 / l;
  for (int64_t e = threadIdx.x % 32; e < in.E; e += 32) {
    Put(o_NHE, ih * in.E + e, space.sums[e] * inverse);
  }
  if (lse_NH != nullptr && threadIdx.x % 32 == 0) lse_NH[ih] = l == 0 ? -INFINITY : m + logf(l);
}

// p and ds of query i and row j.
template <class T>
__device__ inline float2 RowGradient(const RowAttention<T>& in, int64_t i, int64_t h, int64_t j,
                                     int64_t g) {
  const int64_t ih = i * in.H + h;
  const float p = expf(in.scale * Dot(in.q_row(i, h), in.k_row(j, g), in.D) - in.lse[ih]);
  return {p, p * (Dot(in.do_row(i, h), in.v_row(j, g), in.E) - in.delta[ih])};
}

template <class T, class Seen>
__global__ void __launch_bounds__(kPlainThreads)
    RowsQueryGradient(RowAttention<T> in, Seen seen, T* dq_NHD, bool add) {
  const int64_t i = int64_t{blockIdx.x} * kPlainWarps + threadIdx.x / 32;
  const int64_t h = blockIdx.y, g = blockIdx.y / in.share, ih = i * in.H + h;
  if (i >= in.queries) return;
  const RowSpace space(in.D);
  ForEachRow(seen.Of(i, g), 0, 32, [&](int64_t row) {
    const float ds = row >= 0 ? RowGradient(in, i, h, row, g).y : 0;
    space.Add(ds, row, in.k_row(0, g), in.G * in.D, in.D, 1, space.sums);
  });
  for (int64_t d = threadIdx.x % 32; d < in.D; d += 32) {
    PutOrAdd(dq_NHD, ih * in.D + d, in.scale * space.sums[d], add);
  }
}

// A block takes row blockIdx.x of head blockIdx.y; each warp some of its queries.
template <class T, class Readers>
__global__ void __launch_bounds__(kPlainThreads)
    RowsKeyGradients(RowAttention<T> in, Readers readers, T* dk_CGD, T* dv_CGE, bool add_dk,
                     bool add_dv) {
  const int64_t j = blockIdx.x, g = blockIdx.y, jg = j * in.G + g, width = in.D + in.E;
  const RowSpace space(width);
  float *dk = space.sums, *dv = dk + in.D;
  const auto queries = readers.Of(j, g);
  for (int64_t h = g * in.share; h < (g + 1) * in.share; ++h) {
    ForEachRow(queries, threadIdx.x / 32 * 32, kPlainThreads, [&](int64_t i) {
      const float2 of = i >= 0 ? RowGradient(in, i, h, j, g) : float2{0, 0};
      space.Add(of.x, i, in.do_row(0, h), in.H * in.E, in.E, 1, dv);
      space.Add(of.y, i, in.q_row(0, h), in.H * in.D, in.D, 1, dk);
    });
  }
  __syncthreads();
  const float* of_warps = reinterpret_cast<const float*>(DynamicShared()) + 64;
  for (int64_t c = threadIdx.x; c < width; c += kPlainThreads) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kPlainWarps; ++w) sum += of_warps[w * (64 + width) + c];
    if (c < in.D) {
      if (dk_CGD != nullptr) PutOrAdd(dk_CGD, jg * in.D + c, in.scale * sum, add_dk);
    } else if (dv_CGE != nullptr) {
      PutOrAdd(dv_CGE, jg * in.E + c - in.D, sum, add_dv);
    }
  }
}

// delta [rows] = do · o; a warp a row.
template <class T>
__global__ void __launch_bounds__(kPlainThreads)
    RowDeltas(int64_t rows, int64_t E, const T* do_RE, const T* o_RE, float* delta) {
  const int64_t row = int64_t{blockIdx.x} * kPlainWarps + threadIdx.x / 32;
  if (row >= rows) return;
  float sum = 0;
  for (int64_t e = threadIdx.x % 32; e < E; e += 32) {
    sum += Get(do_RE, row * E + e) * Get(o_RE, row * E + e);
  }
  sum = WarpSum(sum);
  if (threadIdx.x % 32 == 0) delta[row] = sum;
}

// From q [queries, H, D], k [rows, G, D] and v [rows, G, E], each perhaps with its rows' extent
// split in two.
template <class T>
RowAttention<T> RowAttentionOf(const Tensor& q, const Tensor& k, const Tensor& v, double scale) {
  const int last = k.shape().rank() - 1;
  const int64_t H = q.dim(1), G = k.dim(last - 1);
  return {.q = Data<T>(q),
          .k = Data<T>(k),
          .v = Data<T>(v),
          .queries = q.dim(0),
          .H = H,
          .G = G,
          .D = q.dim(2),
          .E = v.dim(last),
          .share = static_cast<int>(H / G),
          .scale = static_cast<float>(scale)};
}

template <class T, class Seen>
void RunRowsForward(const Stream& stream, const char* name, const RowAttention<T>& in,
                    const Seen& seen, T* o, float* lse) {
  if (in.queries == 0) return;
  const dim3 grid(Blocks(in.queries, kPlainWarps), static_cast<unsigned>(in.H));
  RowsForward<<<grid, kPlainThreads, RowSpace::Bytes(in.E), Handle(stream)>>>(in, seen, o, lse);
  CheckLaunch(name);
}

// `delta` [queries, H] is workspace; `rows` are those of k.
template <class T, class Args, class Seen, class Readers>
void RunRowsBackward(const Stream& stream, const char* name, RowAttention<T> in, const Args& args,
                     float* delta, const Seen& seen, const Readers& readers, int64_t rows, T* dk,
                     T* dv) {
  in.dout = Data<T>(args.do_NHE);
  in.lse = Data<float>(args.lse_NH);
  in.delta = delta;
  RowDeltas<<<Blocks(in.queries * in.H, kPlainWarps), kPlainThreads, 0, Handle(stream)>>>(
      in.queries * in.H, in.E, in.dout, Data<T>(args.o_NHE), delta);
  CheckLaunch(name);
  if (args.dq_NHD.defined()) {
    const dim3 grid(Blocks(in.queries, kPlainWarps), static_cast<unsigned>(in.H));
    RowsQueryGradient<<<grid, kPlainThreads, RowSpace::Bytes(in.D), Handle(stream)>>>(
        in, seen, Data<T>(args.dq_NHD), args.accumulate_dq);
    CheckLaunch(name);
  }
  if (dk == nullptr && dv == nullptr) return;
  const dim3 grid(static_cast<unsigned>(rows), static_cast<unsigned>(in.G));
  RowsKeyGradients<<<grid, kPlainThreads, RowSpace::Bytes(in.D + in.E), Handle(stream)>>>(
      in, readers, dk, dv, args.accumulate_dk, args.accumulate_dv);
  CheckLaunch(name);
}

}  // namespace lt2::cuda
