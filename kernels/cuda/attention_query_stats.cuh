// What the gradients of attention need of each query, besides its scores.
#pragma once

#include "kernels/attention.h"
#include "kernels/cuda/eight.cuh"

namespace lt2::cuda {

// Done by the same launch for those that follow.
struct Preparation {
  int* zeros = nullptr;
  int zero_count = 0;
  // Tiles of 64 queries and of keys before them or with them, in all documents before each, less
  // those of its own queries that are before query_begin; nullptr where not wanted.
  int* tiles_before = nullptr;
  const int32_t* cu_seqlens = nullptr;
  int documents = 0, query_begin = 0, query_end = 0;
};

// Tiles of the first `blocks` blocks of a document's queries.
__host__ __device__ constexpr int64_t ScoreTilesOfFirst(int64_t blocks) {
  return blocks * (blocks + 1) / 2;
}

__device__ inline void Prepare(const Preparation& wanted) {
  for (int i = threadIdx.x; i < wanted.zero_count; i += blockDim.x) wanted.zeros[i] = 0;
  if (wanted.tiles_before == nullptr || threadIdx.x >= 32) return;
  const int lane = threadIdx.x;
  int before = 0;
  for (int d = lane; d - lane < wanted.documents; d += 32) {
    int tiles = 0, left_out = 0;
    if (d < wanted.documents) {
      const int begin = wanted.cu_seqlens[d], low = max(begin, wanted.query_begin);
      const int high = min(wanted.cu_seqlens[d + 1], wanted.query_end);
      if (low < high) {
        left_out = static_cast<int>(ScoreTilesOfFirst((low - begin) / 64));
        tiles = static_cast<int>(ScoreTilesOfFirst((high - begin + 63) / 64)) - left_out;
      }
    }
    int sum = tiles;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int of_lower = __shfl_up_sync(~0u, sum, step);
      if (lane >= step) sum += of_lower;
    }
    if (d < wanted.documents) wanted.tiles_before[d] = before + sum - tiles - left_out;
    before += __shfl_sync(~0u, sum, 31);
  }
}

// stats_HN = (unit · lse, δ = do · o), heads `stride` tokens apart; `twice`: behind them again, a
// token later, and zero where one copy is short of the other. A row takes `lanes` lanes, 8
// elements each at a time.
template <class T>
__global__ void __launch_bounds__(256)
    QueryStats(int64_t tokens, int H, int64_t E, int lanes, bool eights, float unit,
               const T* do_NHE, const T* o_NHE, const float* lse_NH, float2* stats_HN,
               int64_t stride, bool twice, Preparation wanted) {
  if (blockIdx.x == 0) Prepare(wanted);
  const int64_t ih = (int64_t{blockIdx.x} * 256 + threadIdx.x) / lanes;
  const bool there = ih < tokens * H;
  float delta = 0;
  for (int64_t e = threadIdx.x % lanes * 8; there && e < E; e += 8 * lanes) {
    if (eights) {
      const Eight<T> a(do_NHE + ih * E + e), b(o_NHE + ih * E + e);
#pragma unroll
      for (int n = 0; n < 8; ++n) delta += a.value[n] * b.value[n];
    } else {
      for (int64_t c = e; c < min(e + 8, E); ++c) {
        delta += Get(do_NHE, ih * E + c) * Get(o_NHE, ih * E + c);
      }
    }
  }
  for (int lane = lanes / 2; lane > 0; lane /= 2) delta += __shfl_xor_sync(~0u, delta, lane);
  if (there && threadIdx.x % lanes == 0) {
    const float2 stats = {unit * lse_NH[ih], delta};
    stats_HN[ih % H * stride + ih / H] = stats;
    if (twice) {
      stats_HN[(H + ih % H) * stride + ih / H + 1] = stats;
      if (ih / H == 0) stats_HN[(H + ih) * stride] = {0, 0};
      if (ih / H == tokens - 1) stats_HN[ih % H * stride + tokens] = {0, 0};
    }
  }
}

template <class T>
void RunQueryStats(const Stream& stream, const AttentionBackwardArgs& args, float unit,
                   float2* stats_HN, int64_t stride, bool twice, const Preparation& wanted) {
  const int64_t N = args.q_NHD.dim(0), H = args.q_NHD.dim(1), E = args.v_NGE.dim(2);
  const int lanes = E <= 64 ? 8 : E <= 128 ? 16 : 32;
  QueryStats<<<Blocks(N * H, 256 / lanes), 256, 0, Handle(stream)>>>(
      N, static_cast<int>(H), E, lanes, InEights(args.do_NHE) && InEights(args.o_NHE), unit,
      Data<T>(args.do_NHE), Data<T>(args.o_NHE), Data<float>(args.lse_NH), stats_HN, stride, twice,
      wanted);
  CheckLaunch("attention backward");
}

}  // namespace lt2::cuda
