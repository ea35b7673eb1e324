// What the tensor-core kernels of attention share: which rows a block computes, tiles in shared
// memory, and a warp's products with them.
//
// A block owns kRows = 128 rows (queries, or keys) of one document and head, a warp kTiles times 16
// of them; the other side streams through shared memory, kStream rows at a time, two tiles deep:
// one is computed with while the next arrives. Head sizes are padded with zeros to kWidth.
#pragma once

#include <algorithm>

#include "kernels/attention.h"
#include "kernels/cuda/piece.cuh"
#include "kernels/cuda/tensor_core.cuh"

namespace lt2::cuda {

inline constexpr float kLog2E = 1.4426950408889634f;

// kBlocks: how many shall fit a multiprocessor.
template <int width, int tiles, int warps, int stream, int blocks>
struct AttentionTile {
  static constexpr int kWidth = width, kTiles = tiles, kWarps = warps, kStream = stream;
  static constexpr int kThreads = 32 * kWarps, kBlocks = blocks;
  static constexpr int kRows = 16 * kTiles * kWarps, kWarpRows = 16 * kTiles;
  static constexpr int kPitch = kWidth + 8;  // elements
  static constexpr int kRowBytes = 2 * kRows * kPitch, kStreamBytes = 2 * kStream * kPitch;
  static_assert(kRows == 128 && kWidth % 16 == 0 && kStream % 16 == 0);
};

// One of q, k, v, do: that of token i and head h is at data + (i - begin) * stride + h * size.
struct HeadRows {
  const bf16* data;
  int64_t stride;
  int size;
  int begin;  // queries: token of row 0; keys: 0
};

struct AttentionProblem {
  const int32_t *query_chunks, *key_chunks, *cu_seqlens;
  int query_begin, query_end, tokens;
  int heads, groups;
  int window;  // keys that a query sees: at most kNoWindow
  float scale;
};
inline constexpr int kNoWindow = 1 << 30;

inline HeadRows RowsOf(const Tensor& x, int64_t begin = 0) {
  const int size = static_cast<int>(x.dim(2));
  return {.data = Data<bf16>(x),
          .stride = x.dim(1) * size,
          .size = size,
          .begin = static_cast<int>(begin)};
}
inline AttentionProblem ProblemOf(const Tensor& q_NHD, const Tensor& k_NGD,
                                  const AttentionOptions& options, const Documents& documents) {
  const int64_t window = options.window > 0 ? options.window : kNoWindow;
  return {.query_chunks = Data<int32_t>(documents.query_chunks()),
          .key_chunks = Data<int32_t>(documents.chunks()),
          .cu_seqlens = Data<int32_t>(documents.cu_seqlens()),
          .query_begin = static_cast<int>(documents.query_begin()),
          .query_end = static_cast<int>(documents.query_end()),
          .tokens = static_cast<int>(documents.tokens()),
          .heads = static_cast<int>(q_NHD.dim(1)),
          .groups = static_cast<int>(k_NGD.dim(1)),
          .window = static_cast<int>(std::min<int64_t>(window, kNoWindow)),
          .scale = static_cast<float>(options.scale)};
}

// Rows [first, last] of a document [begin, end), kRows at most.
struct BlockRows {
  int begin, end, first, last;
  bool any;
};
// The chunks of documents are 64 tokens; of those that begin what is wanted of a tile of kRows,
// tokens [low, high), one block each.
template <int kRows>
__device__ inline BlockRows RowsOfBlock(const AttentionProblem& problem, const int32_t* chunks,
                                        int chunk, int low, int high) {
  const int32_t* c = chunks + 3 * chunk;
  if (c[2] <= 0) return {.any = false};  // there are fewer documents than room for them
  const int begin = problem.cu_seqlens[c[0]], end = problem.cu_seqlens[c[0] + 1];
  const int tile = c[1] - (c[1] - begin) % kRows;
  return {.begin = begin,
          .end = end,
          .first = c[1],
          .last = min(tile + kRows, min(end, high)) - 1,
          .any = c[1] == max(tile, low)};
}
template <int kRows>
__device__ inline BlockRows QueriesOfBlock(const AttentionProblem& problem, int chunk) {
  return RowsOfBlock<kRows>(problem, problem.query_chunks, chunk, problem.query_begin,
                            problem.query_end);
}
template <int kRows>
__device__ inline BlockRows KeysOfBlock(const AttentionProblem& problem, int chunk) {
  return RowsOfBlock<kRows>(problem, problem.key_chunks, chunk, 0, problem.tokens);
}

// Starts to [kRows, kPitch] = rows of tokens [first, first + kRows) of a head, zeros from `end` on.
// A thread copies one column of pieces.
template <class Tile, int kRows>
__device__ inline void CopyRows(uint32_t to, const HeadRows& from, int head, int first, int end) {
  constexpr int kPieces = Tile::kWidth / 8, kStep = Tile::kThreads / kPieces;
  const int row = threadIdx.x / kPieces, column = threadIdx.x % kPieces * 8;
  if (row >= kStep) return;
  const bf16* source =
      from.data + (first - from.begin + row) * from.stride + head * from.size + column;
  const int left = column < from.size ? end - first - row : 0;
  to += 2 * (row * Tile::kPitch + column);
#pragma unroll
  for (int n = 0; n < kRows; n += kStep) {
    if (n + kStep > kRows && n + row >= kRows) break;
    CopyAsync16(to + 2 * n * Tile::kPitch, source, n < left);
    source += kStep * from.stride;
  }
}

// Where lane l reads a 16x16 block at (row, column) of a tile: `Rows` as an a operand, and as a b
// operand [k, n] after LoadTransposed; `Columns` as a b operand stored [n, k]. Registers 0, 1 of a
// b are its first 8 columns n, 2 and 3 the others.
template <class Tile>
__device__ inline uint32_t LaneOfRows(uint32_t tile) {
  const int lane = threadIdx.x % 32;
  return tile + 2 * (lane % 16 * Tile::kPitch + lane / 16 * 8);
}
template <class Tile>
__device__ inline uint32_t LaneOfColumns(uint32_t tile) {
  const int lane = threadIdx.x % 32;
  return tile + 2 * ((lane % 8 + lane / 16 * 8) * Tile::kPitch + lane / 8 % 2 * 8);
}
template <class Tile>
__device__ constexpr uint32_t BlockOffset(int row, int column) {
  return 2 * (row * Tile::kPitch + column);
}

// A warp's products: c [kWarpRows, columns], held in pieces of 16x8.
template <class Tile>
using Scores = float[Tile::kTiles][Tile::kStream / 8][4];
template <class Tile>
using RowSums = float[Tile::kTiles][Tile::kWidth / 8][4];

// s = a bᵀ; a: LaneOfRows of the warp's rows; b: LaneOfColumns of a streamed tile.
template <class Tile>
__device__ inline void ProductOfRows(Scores<Tile>& s, uint32_t a_lane, uint32_t b_lane) {
#pragma unroll
  for (int t = 0; t < Tile::kTiles; ++t) {
#pragma unroll
    for (int n = 0; n < Tile::kStream / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[t][n][i] = 0;
    }
  }
#pragma unroll
  for (int k = 0; k < Tile::kWidth; k += 16) {
    uint32_t a[Tile::kTiles][4];
#pragma unroll
    for (int t = 0; t < Tile::kTiles; ++t) {
      LoadMatrices(a[t], a_lane + BlockOffset<Tile>(16 * t, k));
    }
#pragma unroll
    for (int n = 0; n < Tile::kStream / 16; ++n) {
      uint32_t b[4];
      LoadMatrices(b, b_lane + BlockOffset<Tile>(16 * n, k));
#pragma unroll
      for (int t = 0; t < Tile::kTiles; ++t) {
        MultiplyAdd(s[t][2 * n], a[t], b[0], b[1]);
        MultiplyAdd(s[t][2 * n + 1], a[t], b[2], b[3]);
      }
    }
  }
}

// sums += bf16(p) b; b: LaneOfRows of a streamed tile.
template <class Tile>
__device__ inline void AddProduct(RowSums<Tile>& sums, const Scores<Tile>& p, uint32_t b_lane) {
#pragma unroll
  for (int k = 0; k < Tile::kStream / 16; ++k) {
    uint32_t a[Tile::kTiles][4];
#pragma unroll
    for (int t = 0; t < Tile::kTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* pair = p[t][2 * k + i / 2] + i % 2 * 2;
        a[t][i] = Pack(pair[0], pair[1]);
      }
    }
#pragma unroll
    for (int n = 0; n < Tile::kWidth / 16; ++n) {
      uint32_t b[4];
      LoadTransposed(b, b_lane + BlockOffset<Tile>(16 * k, 16 * n));
#pragma unroll
      for (int t = 0; t < Tile::kTiles; ++t) {
        MultiplyAdd(sums[t][2 * n], a[t], b[0], b[1]);
        MultiplyAdd(sums[t][2 * n + 1], a[t], b[2], b[3]);
      }
    }
  }
}

// One number for each row of a lane.
template <class Tile>
struct OfRows {
  float value[Tile::kTiles][2];
};
template <class Tile>
__device__ inline OfRows<Tile> Everywhere(float value) {
  OfRows<Tile> all;
#pragma unroll
  for (int t = 0; t < Tile::kTiles; ++t) all.value[t][0] = all.value[t][1] = value;
  return all;
}

template <class Tile>
__device__ inline void SetZero(RowSums<Tile>& sums) {
#pragma unroll
  for (int t = 0; t < Tile::kTiles; ++t) {
#pragma unroll
    for (int n = 0; n < Tile::kWidth / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[t][n][i] = 0;
    }
  }
}

// Four lanes hold each a row of a 4x4 matrix, and then a column of it.
__device__ inline void TransposeFour(uint32_t (&x)[4]) {
  const bool odd = threadIdx.x % 2 == 1, upper = threadIdx.x % 4 >= 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t other = __shfl_xor_sync(~0u, odd ? x[i] : x[i + 1], 1);
    (odd ? x[i] : x[i + 1]) = other;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t other = __shfl_xor_sync(~0u, upper ? x[i] : x[i + 2], 2);
    (upper ? x[i] : x[i + 2]) = other;
  }
}

// Whether 0 <= i < end.
__device__ inline bool Within(int i, int end) {
  return static_cast<unsigned>(i) < static_cast<unsigned>(end);
}

// Writes factor · sums of rows [0, end) to row i of a head [rows, heads, size], or adds them; `row`
// is the lane's first, the second of a tile `second` after it. 16 bytes of a row a lane.
template <class Tile>
__device__ inline void StoreRows(const RowSums<Tile>& sums, const OfRows<Tile>& factor, int row,
                                 int end, bf16* to, int64_t stride, int size, bool add,
                                 int second = 8) {
#pragma unroll
  for (int t = 0; t < Tile::kTiles; ++t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = row + 16 * t + second * half;
#pragma unroll
      for (int n = 0; n < Tile::kWidth / 8; n += 4) {
        if (8 * n >= size) break;
        const int column = 8 * (n + threadIdx.x % 4);
        const bool there = Within(i, end) && column < size;
        auto* to_i = reinterpret_cast<uint4*>(to + i * stride + column);
        uint32_t pairs[4] = {};
        if (add) {
          if (there) {
            const uint4 before = *to_i;
            pairs[0] = before.x, pairs[1] = before.y, pairs[2] = before.z, pairs[3] = before.w;
          }
          TransposeFour(pairs);
        }
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const float* pair = sums[t][n + k] + 2 * half;
          pairs[k] = Pack(fmaf(factor.value[t][half], pair[0], LowerHalf(pairs[k])),
                          fmaf(factor.value[t][half], pair[1], UpperHalf(pairs[k])));
        }
        TransposeFour(pairs);
        if (there) *to_i = {pairs[0], pairs[1], pairs[2], pairs[3]};
      }
    }
  }
}

// Calls run.template operator()<width>() with the least padded head size.
template <class Run>
void DispatchWidth(int64_t size, Run&& run) {
  if (size <= 32) return run.template operator()<32>();
  if (size <= 64) return run.template operator()<64>();
  if (size <= 96) return run.template operator()<96>();
  if (size <= 128) return run.template operator()<128>();
  if (size <= 192) return run.template operator()<192>();
  CHECK_LE(size, 256);
  run.template operator()<256>();
}

template <class Kernel>
void AllowShared(Kernel kernel, int bytes) {
  LT2_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
}

}  // namespace lt2::cuda
