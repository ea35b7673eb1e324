// What queries and keys determine of a chunk of the delta rule: all chunks and heads at once.
//
// With G the cumulative log-decay inside the chunk and D_rj = exp(G_r - G_j) for j <= r
//   A_rj = beta_r <k_r, k_j> D_rj, j < r      T = (I + A)^{-1}
//   P_rj = scale <q_r, k_j> D_rj, j <= r
//   u_0  = T beta V                           W = -T beta exp(G) K
//   dU_0 = P^T dO
//   q_read = scale exp(G) Q                   k_write = exp(G_C - G) K
// so that scan_states.cuh has U = u_0 + W S_in and, in the reverse, E = T^T dU.
#pragma once

#include "kernels/cuda/scan_delta_tiles.cuh"
#include "kernels/cuda/scan_pairs.cuh"

namespace lt2::cuda {

// x [64, 64] = (I + a)^{-1}, a strictly lower triangular, both of stride kPanelStride<float>. The
// diagonal blocks of 16 by substitution, a thread a column; then block row by block row
//   x_ij = -x_ii sum over m of a_im x_mj,  j <= m < i.
// `sums` [16, 48] is scratch.
__device__ inline void InvertLower(const float* a, float* x, float* sums) {
  constexpr int kStride = kPanelStride<float>, kBlock = 16, kSums = 48;
  for (int i = threadIdx.x; i < kPanel * kPanel; i += kPanelThreads) {
    x[i / kPanel * kStride + i % kPanel] = 0;
  }
  __syncthreads();
  if (threadIdx.x < kPanel) {
    const int first = threadIdx.x / kBlock * kBlock, j = threadIdx.x % kBlock;
    float column[kBlock];
#pragma unroll
    for (int r = 0; r < kBlock; ++r) {
      float sum = 0;
#pragma unroll
      for (int m = 0; m < r; ++m) sum -= a[(first + r) * kStride + first + m] * column[m];
      column[r] = r == j ? 1 : r < j ? 0 : sum;
      x[(first + r) * kStride + first + j] = column[r];
    }
  }
  __syncthreads();
  for (int i = kBlock; i < kPanel; i += kBlock) {
    for (int at = threadIdx.x; at < kBlock * i; at += kPanelThreads) {
      const int r = at / i, j = at % i;
      float sum = 0;
      for (int m = j / kBlock * kBlock; m < i; ++m) {
        sum += a[(i + r) * kStride + m] * x[m * kStride + j];
      }
      sums[r * kSums + j] = sum;
    }
    __syncthreads();
    for (int at = threadIdx.x; at < kBlock * i; at += kPanelThreads) {
      const int r = at / i, j = at % i;
      float sum = 0;
      for (int m = 0; m <= r; ++m) sum -= x[(i + r) * kStride + i + m] * sums[m * kSums + j];
      x[(i + r) * kStride + j] = sum;
    }
    __syncthreads();
  }
}

// A and its inverse; before them, what sums over pairs need.
template <class T>
inline constexpr int kSquareBytes = std::max(2 * kPanelSize<float> * 4,
                                             ChannelPairs<T, true>::kPanelBytes);

template <class T>
int64_t DeltaPreparationShared(bool channels) {
  return 3 * kPanelSize<T> * static_cast<int64_t>(sizeof(T)) + kSquareBytes<T> + 16 * 48 * 4 +
         (channels ? ChannelPairs<T, true>::kSumBytes : 0);
}

template <class T, bool kChannels, bool kBackward>
__global__ void __launch_bounds__(kPanelThreads) PrepareDelta(DeltaPreparation<T> data) {
  __shared__ RowWeights decays;
  __shared__ float beta[kPanel], read_by[kPanel];
  const DeltaInputs<T>& in = data.in;
  const ScanShape& n = in.shape;
  const int chunk = blockIdx.x, head = blockIdx.y, key_head = head / (n.heads / n.key_heads);
  const ChunkPlace place = n.Place(chunk);
  if (place.rows == 0) return;
  const int64_t item = int64_t{chunk} * n.heads + head;
  const int64_t at_key = (int64_t{place.token} * n.key_heads + key_head) * n.k;
  const int64_t at_head = int64_t{place.token} * n.heads + head;
  const int64_t key_stride = int64_t{n.key_heads} * n.k, stride = int64_t{n.heads} * n.v;
  const int padded = PaddedWidth(n.k);
  T *first = reinterpret_cast<T*>(DynamicShared()), *second = first + kPanelSize<T>;
  T* square = second + kPanelSize<T>;
  float* a = reinterpret_cast<float*>(square + kPanelSize<T>);
  float *inverse = a + kPanelSize<float>, *sums = a + kSquareBytes<T> / 4;
  ChannelPairs<T, true> pairs(sums + 16 * 48, a);

  decays.Load<T>(in.g_NG == nullptr ? nullptr : in.g_NG + at_head, n.heads, 0, place.rows);
  if (threadIdx.x < kPanel) {
    const int r = threadIdx.x;
    beta[r] = r < place.rows ? in.beta_NG[at_head + int64_t{r} * n.heads] : 0;
  }
  Accumulator qk, kk;
  for (int p = 0; p < PanelsOf(n.k); ++p) {
    const int columns = PanelColumns(padded, p);
    __syncthreads();
    LoadPanel(first, in.q_NHK + at_key + p * kPanel, key_stride, place.rows, n.k - p * kPanel);
    LoadPanel(second, in.k_NHK + at_key + p * kPanel, key_stride, place.rows, n.k - p * kPanel);
    if constexpr (kChannels) {
      pairs.Load(in.g_NGK + at_head * n.k + p * kPanel, int64_t{n.heads} * n.k, place.rows,
                 n.k - p * kPanel);
    }
    __syncthreads();
    if constexpr (kChannels) {
      pairs.AddProducts(first, second, columns, qk, kk);
    } else {
      Multiply<false, true>(qk, first, second, 0, columns);
      Multiply<false, true>(kk, second, second, 0, columns);
    }
    StorePanel(first, data.operands.Rows(data.operands.q_read, item, n.k) + p * kPanel, padded,
               kPanel, columns, false, [&](int r, int c, auto& piece) {
                 ScalePiece(piece, [&](int i) {
                   return in.scale * (kChannels ? pairs.FromStart(r, c + i) : decays.from_start[r]);
                 });
               });
    StorePanel(second, data.operands.Rows(data.operands.k_write, item, n.k) + p * kPanel, padded,
               kPanel, columns, false, [&](int r, int c, auto& piece) {
                 ScalePiece(piece, [&](int i) {
                   return kChannels ? pairs.ToEnd(r, c + i) : decays.to_end[r];
                 });
               });
    const int d = p * kPanel + threadIdx.x;
    if (threadIdx.x < columns) {
      data.operands.decay[item * padded + d] = kChannels ? pairs.Whole(threadIdx.x) : decays.whole;
    }
  }
  if constexpr (kChannels) pairs.AddDiagonal(qk, kk);
  if (threadIdx.x < kPanel)
    read_by[threadIdx.x] = -beta[threadIdx.x] * decays.from_start[threadIdx.x];
  ForEachPair(qk, [&](int r, int c, float& x, float& y) {
    x = c <= r ? in.scale * x * decays.Between<T>(r, c) : 0;
    y = c + 1 <= r ? in.scale * y * decays.Between<T>(r, c + 1) : 0;
    PutPair(square, r, c, x, y);
  });
  ForEachPair(kk, [&](int r, int c, float& x, float& y) {
    x = c < r ? beta[r] * x * decays.Between<T>(r, c) : 0;
    y = c + 1 < r ? beta[r] * y * decays.Between<T>(r, c + 1) : 0;
    PutPair(a, r, c, x, y);
  });
  __syncthreads();
  if (data.operands.attention != nullptr) {
    StorePanel(square, data.operands.Square(data.operands.attention, item), kPanel, kPanel, kPanel);
  }
  InvertLower(a, inverse, sums);

  // What P or T multiplies: dO, or beta V.
  if constexpr (kBackward) {
    for (int begin = 0; begin < n.v; begin += kPanel) {
      const T* from = data.d_o == nullptr ? nullptr : data.d_o + at_head * n.v + begin;
      LoadPanel(first, from, stride, place.rows, n.v - begin);
      __syncthreads();
      Accumulator du;
      Multiply<true, false>(du, square, first, 0, kPanel);
      ForEachPair(du, [&](int r, int c, float x, float y) { PutPair(second, r, c, x, y); });
      __syncthreads();
      StorePanel(second, data.u + at_head * n.v + begin, stride, place.rows, n.v - begin);
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kPanel * kPanel / 2; i += kPanelThreads) {
    const int r = i / (kPanel / 2), c = i % (kPanel / 2) * 2;
    const float2 pair = GetPair(inverse, r, c);
    PutPair(square, r, c, pair.x, pair.y);
  }
  __syncthreads();
  if (data.inverse != nullptr) {
    StorePanel(square, data.operands.Square(data.inverse, item), kPanel, kPanel, kPanel);
  }
  if constexpr (!kBackward) {
    for (int begin = 0; begin < n.v; begin += kPanel) {
      LoadPanel(first, in.v_NGV + at_head * n.v + begin, stride, place.rows, n.v - begin,
                [&](int r, int, auto& piece) { ScalePiece(piece, [&](int) { return beta[r]; }); });
      __syncthreads();
      Accumulator u;
      Multiply<false, false>(u, square, first, 0, kPanel);
      ForEachPair(u, [&](int r, int c, float x, float y) { PutPair(second, r, c, x, y); });
      __syncthreads();
      StorePanel(second, data.u + at_head * n.v + begin, stride, place.rows, n.v - begin);
    }
  }
  for (int p = 0; p < PanelsOf(n.k); ++p) {
    const int columns = PanelColumns(padded, p);
    __syncthreads();
    if constexpr (kChannels) {
      pairs.Load(in.g_NGK + at_head * n.k + p * kPanel, int64_t{n.heads} * n.k, place.rows,
                 n.k - p * kPanel);
      __syncthreads();
    }
    LoadPanel(first, in.k_NHK + at_key + p * kPanel, key_stride, place.rows, n.k - p * kPanel,
              [&](int r, int c, auto& piece) {
                ScalePiece(piece, [&](int i) {
                  return kChannels ? read_by[r] * pairs.FromStart(r, c + i) : read_by[r];
                });
              });
    __syncthreads();
    Accumulator w;
    Multiply<false, false>(w, square, first, 0, kPanel);
    ForEachPair(w, [&](int r, int c, float x, float y) { PutPair(second, r, c, x, y); });
    __syncthreads();
    StorePanel(second, data.operands.Rows(data.operands.w, item, n.k) + p * kPanel, padded, kPanel,
               columns);
  }
}

template <class T, bool kBackward>
void LaunchPrepareDelta(const Stream& stream, const DeltaPreparation<T>& data, int64_t chunks) {
  if constexpr (std::is_same_v<T, bf16>) {
    if (FitsDeltaTiles(data.in, {data.d_o, data.u})) {
      return LaunchPrepareDeltaTiles<kBackward>(stream, data, chunks);
    }
  }
  const dim3 grid(static_cast<unsigned>(chunks), static_cast<unsigned>(data.in.shape.heads));
  const bool channels = data.in.g_NGK != nullptr;
  const int64_t shared = DeltaPreparationShared<T>(channels);
  const auto kernel =
      channels ? PrepareDelta<T, true, kBackward> : PrepareDelta<T, false, kBackward>;
  AllowShared(kernel, shared);
  kernel<<<grid, kPanelThreads, shared, Handle(stream)>>>(data);
  CheckLaunch("scan_delta prepare");
}

}  // namespace lt2::cuda
