// Online softmax on a tile of scores in registers, and what ends the forward pass.
#pragma once

#include "kernels/cuda/attention_tile.cuh"

namespace lt2::cuda {

struct Forward {
  AttentionProblem problem;
  HeadRows q, k, v;
  bf16* o_NHE;
  float* lse_NH;
};

inline Forward ForwardOf(const AttentionForwardArgs& args) {
  return {.problem = ProblemOf(args.q_NHD, args.k_NGD, args.options, args.documents),
          .q = RowsOf(args.q_NHD, args.documents.query_begin()),
          .k = RowsOf(args.k_NGD),
          .v = RowsOf(args.v_NGE),
          .o_NHE = Data<bf16>(args.o_NHE),
          .lse_NH = Data<float>(args.lse_NH)};
}

inline constexpr float kMasked = -1e30f;  // finite, so that differences of maxima are

// s: of keys [key, key + kStream) and the warp's queries, `row` the lane's first.
template <class Tile>
__device__ inline void Mask(Scores<Tile>& s, int key, int row, int window) {
  const int column = key + threadIdx.x % 4 * 2;
#pragma unroll
  for (int t = 0; t < Tile::kTiles; ++t) {
#pragma unroll
    for (int n = 0; n < Tile::kStream / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int back = row + 16 * t + i / 2 * 8 - (column + 8 * n + i % 2);
        if (back < 0 || back >= window) s[t][n][i] = kMasked;
      }
    }
  }
}

// Scores become probabilities relative to the new maxima m; the sums l follow, and sums of values
// are to be multiplied by `shrink`, unless false is returned. The columns of a row are spread over
// four lanes: l is the lane's own part. scale > 0, in base 2.
template <class Tile>
__device__ inline bool Softmax(Scores<Tile>& s, float scale, OfRows<Tile>& m, OfRows<Tile>& l,
                               OfRows<Tile>& shrink) {
  bool changed = false;
#pragma unroll
  for (int t = 0; t < Tile::kTiles; ++t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float most = m.value[t][half];
#pragma unroll
      for (int n = 0; n < Tile::kStream / 8; ++n) {
        most = fmaxf(most, fmaxf(s[t][n][2 * half], s[t][n][2 * half + 1]));
      }
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
      shrink.value[t][half] = Exp2((m.value[t][half] - most) * scale);
      changed |= most != m.value[t][half];
      m.value[t][half] = most;
      const float shift = most == kMasked ? 0 : -most * scale;  // p is 0 where nothing is seen yet
      float sum = 0;
#pragma unroll
      for (int n = 0; n < Tile::kStream / 8; ++n) {
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          s[t][n][i] = Exp2(fmaf(s[t][n][i], scale, shift));
          sum += s[t][n][i];
        }
      }
      l.value[t][half] = l.value[t][half] * shrink.value[t][half] + sum;
    }
  }
  return __any_sync(~0u, changed);
}

template <class Tile>
__device__ inline void Rescale(RowSums<Tile>& o, const OfRows<Tile>& shrink) {
#pragma unroll
  for (int t = 0; t < Tile::kTiles; ++t) {
#pragma unroll
    for (int n = 0; n < Tile::kWidth / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) o[t][n][i] *= shrink.value[t][i / 2];
    }
  }
}

// o and lse of the lane's rows [0, end), from sums o, l and maxima m; `row` is its first.
template <class Tile>
__device__ inline void FinishRows(const Forward& args, int head, int row, int end,
                                  const OfRows<Tile>& m, const OfRows<Tile>& l,
                                  const RowSums<Tile>& o) {
  OfRows<Tile> inverse;
#pragma unroll
  for (int t = 0; t < Tile::kTiles; ++t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = l.value[t][half];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      inverse.value[t][half] = 1 / sum;
      const int i = row + 16 * t + 8 * half;
      if (threadIdx.x % 4 == 0 && Within(i, end)) {
        args.lse_NH[int64_t{i} * args.problem.heads + head] =
            m.value[t][half] * args.problem.scale + logf(sum);
      }
    }
  }
  StoreRows<Tile>(o, inverse, row, end, args.o_NHE + head * args.v.size,
                  int64_t{args.problem.heads} * args.v.size, args.v.size, false);
}

}  // namespace lt2::cuda
