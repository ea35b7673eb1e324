// Gradients of attention without atomics: queries stay and keys stream for dq, keys stay and the
// queries of all heads that read them stream for dk and dv. Scores are computed again in both, from
// lse: seven products where the least is five, and the same bits every time.
//
// One kernel does either. With rows a (q or k), b (do or v) that stay and x (k or q), y (v or do)
// that stream:
//   s = a xᵀ,  p = exp(scale s - lse),  ds = p (b yᵀ - δ),  da = scale sum ds x,  db = sum p y
// where lse and δ are of the queries: of rows for dq, of columns for dk and dv (db = dv; for
// queries it is not wanted).
#pragma once

#include "kernels/cuda/attention_tile.cuh"

namespace lt2::cuda {

enum class Stay { kQueries, kKeys };

struct Backward {
  AttentionProblem problem;
  HeadRows a, b, x, y;
  const float2* stats_HN;
  int64_t stats_stride;  // from head to head
  bf16 *da, *db;         // as a and b; null where not wanted
  bool add_da, add_db;
};

// lse and δ of the lane's rows, where those are queries: tokens below `end`, `row` on.
template <class Tile>
struct RowStats {
  float lse[Tile::kTiles][2], delta[Tile::kTiles][2];
};
template <class Tile>
__device__ inline RowStats<Tile> StatsOfRows(const Backward& args, int head, int row, int end) {
  RowStats<Tile> of;
#pragma unroll
  for (int t = 0; t < Tile::kTiles; ++t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = row + 16 * t + 8 * half;
      float2 stats = {0, 0};
      if (Tile::kQueries && i < end) {
        stats = args.stats_HN[head * args.stats_stride + i - args.a.begin];
      }
      of.lse[t][half] = stats.x, of.delta[t][half] = stats.y;
    }
  }
  return of;
}

// p = exp2(scale s - lse), 0 where a query does not see a key.
template <class Tile>
__device__ inline void Probabilities(Scores<Tile>& s, float scale, const RowStats<Tile>& rows,
                                     const float2* columns) {
#pragma unroll
  for (int n = 0; n < Tile::kStream / 8; ++n) {
    float of_column[2];
    if constexpr (!Tile::kQueries) {
      const float4 two = reinterpret_cast<const float4*>(columns)[4 * n + threadIdx.x % 4];
      of_column[0] = two.x, of_column[1] = two.z;
    }
#pragma unroll
    for (int t = 0; t < Tile::kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float shift = Tile::kQueries ? rows.lse[t][i / 2] : of_column[i % 2];
        s[t][n][i] = Exp2(fmaf(s[t][n][i], scale, -shift));
      }
    }
  }
}

// `back`: by how much the lane's first row lies after the tile's first column.
template <class Tile>
__device__ inline void Mask(Scores<Tile>& p, int back, int window) {
  const int first = Tile::kQueries ? back - threadIdx.x % 4 * 2 : threadIdx.x % 4 * 2 - back;
#pragma unroll
  for (int t = 0; t < Tile::kTiles; ++t) {
#pragma unroll
    for (int n = 0; n < Tile::kStream / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int to_row = 16 * t + i / 2 * 8, to_column = 8 * n + i % 2;
        const int age = first + (Tile::kQueries ? to_row - to_column : to_column - to_row);
        if (age < 0 || age >= window) p[t][n][i] = 0;
      }
    }
  }
}

// p becomes ds = p (dp - δ).
template <class Tile>
__device__ inline void ScoreGradients(Scores<Tile>& p, const Scores<Tile>& dp,
                                      const RowStats<Tile>& rows, const float2* columns) {
#pragma unroll
  for (int n = 0; n < Tile::kStream / 8; ++n) {
    float of_column[2];
    if constexpr (!Tile::kQueries) {
      const float4 two = reinterpret_cast<const float4*>(columns)[4 * n + threadIdx.x % 4];
      of_column[0] = two.y, of_column[1] = two.w;
    }
#pragma unroll
    for (int t = 0; t < Tile::kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        p[t][n][i] *= dp[t][n][i] - (Tile::kQueries ? rows.delta[t][i / 2] : of_column[i % 2]);
      }
    }
  }
}

// The streamed rows [begin, end) of a block, once for each of `heads` heads from `head` on.
struct Streamed {
  int begin, end, head, heads;
};
template <class Tile>
__device__ inline Streamed StreamedBy(const AttentionProblem& problem, const BlockRows& rows) {
  const int share = problem.heads / problem.groups;
  if constexpr (Tile::kQueries) {
    return {.begin = max(rows.begin, rows.first - problem.window + 1),
            .end = rows.last + 1,
            .head = static_cast<int>(blockIdx.x) / share,
            .heads = 1};
  }
  return {.begin = max(rows.first, problem.query_begin),
          .end = min(min(rows.end, rows.last + problem.window), problem.query_end),
          .head = static_cast<int>(blockIdx.x) * share,
          .heads = share};
}

// Of tokens below `end`; `row` is the lane's first.
template <class Tile>
__device__ inline void StoreGradients(const Backward& args, int head, int row, int end,
                                      const RowSums<Tile>& da, const RowSums<Tile>& db) {
  row -= args.a.begin, end -= args.a.begin;
  if constexpr (Tile::kWithDa) {
    if (args.da != nullptr) {
      StoreRows<Tile>(da, Everywhere<Tile>(args.problem.scale), row, end,
                      args.da + head * args.a.size, args.a.stride, args.a.size, args.add_da);
    }
  }
  if constexpr (Tile::kWithDb) {
    if (args.db != nullptr) {
      StoreRows<Tile>(db, Everywhere<Tile>(1), row, end, args.db + head * args.b.size,
                      args.b.stride, args.b.size, args.add_db);
    }
  }
}

inline Backward OfQueries(const AttentionBackwardArgs& args, const void* stats_HN,
                          int64_t stats_stride) {
  return {.problem = ProblemOf(args.q_NHD, args.k_NGD, args.options, args.documents),
          .a = RowsOf(args.q_NHD, args.documents.query_begin()),
          .b = RowsOf(args.do_NHE, args.documents.query_begin()),
          .x = RowsOf(args.k_NGD),
          .y = RowsOf(args.v_NGE),
          .stats_HN = static_cast<const float2*>(stats_HN),
          .stats_stride = stats_stride,
          .da = DataOrNull<bf16>(args.dq_NHD),
          .db = nullptr,
          .add_da = args.accumulate_dq,
          .add_db = false};
}
inline Backward OfKeys(const AttentionBackwardArgs& args, const void* stats_HN,
                       int64_t stats_stride) {
  Backward keys = OfQueries(args, stats_HN, stats_stride);
  std::swap(keys.a, keys.x), std::swap(keys.b, keys.y);
  keys.da = DataOrNull<bf16>(args.dk_NGD), keys.add_da = args.accumulate_dk;
  keys.db = DataOrNull<bf16>(args.dv_NGE), keys.add_db = args.accumulate_dv;
  return keys;
}

}  // namespace lt2::cuda
