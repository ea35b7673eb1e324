// Products of a warp's own 16 rows with tiles of bf16 in shared memory, and the results' way to
// memory: 16 bytes a lane, without shared memory between.
//
// The rows of a tile are an odd multiple of 16 bytes apart: ldmatrix meets no bank conflicts.
// Fragments are as tensor_core.cuh has them.
#pragma once

#include "kernels/cuda/piece.cuh"
#include "kernels/cuda/tensor_core.cuh"

namespace lt2::cuda {

inline constexpr int kTileColumns = 32;  // what a warp stores at a time

__host__ __device__ inline int TileWidth(int width) {
  return (width + kTileColumns - 1) / kTileColumns * kTileColumns;
}
__host__ __device__ inline int TileStride(int width) { return TileWidth(width) + 8; }

struct Tile {
  bf16* at;
  int stride;  // TileStride of some width

  __device__ bf16* Row(int r) const { return at + r * stride; }
};

// Asks for rows [0, rows) of the tile, TileWidth(columns) wide, from rows `stride` apart: zeros
// beyond `valid` rows and beyond columns (a multiple of 8), or everywhere if from is null.
template <int kThreads>
__device__ inline void FetchTile(const Tile& tile, int rows, const bf16* from, int64_t stride,
                                 int valid, int columns) {
  constexpr int kPieces = 16, kRows = kThreads / kPieces;  // of a row, and at a time
  const int first = threadIdx.x / kPieces, width = TileWidth(columns);
  const bool whole = from != nullptr && valid >= rows && columns == width && rows % kRows == 0;
  for (int c = threadIdx.x % kPieces * 8; c < width; c += kPieces * 8) {
    const bf16* at = from + first * stride + c;
    if (whole) {
      uint32_t to = SharedAddress(tile.Row(first) + c);
#pragma unroll 4
      for (int r = 0; r < rows; r += kRows, at += kRows * stride) {
        CopyAsync16(to, at, true);
        to += kRows * tile.stride * static_cast<int>(sizeof(bf16));
      }
      continue;
    }
#pragma unroll 1
    for (int r = first; r < rows; r += kRows, at += kRows * stride) {
      bf16* to = tile.Row(r) + c;
      if (from != nullptr) {
        const bool there = r < valid && c < columns;
        CopyAsync16(SharedAddress(to), there ? at : from, there);
      } else {
        *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
      }
    }
  }
}

// Left operand: rows from `row` on, inner columns from k on.
__device__ inline void LoadLeft(uint32_t (&a)[4], const Tile& tile, int row, int k) {
  const int lane = threadIdx.x % 32;
  LoadMatrices(a, SharedAddress(tile.Row(row + lane % 16) + k + lane / 16 * 8));
}
// Of a tile stored [inner, row].
__device__ inline void LoadLeftTransposed(uint32_t (&a)[4], const Tile& tile, int row, int k) {
  const int lane = threadIdx.x % 32;
  LoadTransposed(a, SharedAddress(tile.Row(k + lane % 8 + lane / 16 * 8) + row + lane / 8 % 2 * 8));
}
// Right operand, [inner, column]: two tiles of 8 columns from n on, a half of b each.
__device__ inline void LoadRight(uint32_t (&b)[4], const Tile& tile, int k, int n) {
  const int lane = threadIdx.x % 32;
  LoadTransposed(b, SharedAddress(tile.Row(k + lane % 16) + n + lane / 16 * 8));
}
// Of a tile stored [column, inner].
__device__ inline void LoadRightTransposed(uint32_t (&b)[4], const Tile& tile, int k, int n) {
  const int lane = threadIdx.x % 32;
  LoadMatrices(b, SharedAddress(tile.Row(n + lane % 8 + lane / 16 * 8) + k + lane / 8 % 2 * 8));
}

// Sums of a warp's 16 rows: c[i] are those of 8 columns.
//
// c += a times b, a b's 16 columns.
__device__ inline void MultiplyAdd16(float (*c)[4], const uint32_t (&a)[4],
                                     const uint32_t (&b)[4]) {
  MultiplyAdd(c[0], a, b[0], b[1]);
  MultiplyAdd(c[1], a, b[2], b[3]);
}
// c += a times rows [k, k + 16) of the tile's 32 columns from n on.
__device__ inline void MultiplyAdd32(float (*c)[4], const uint32_t (&a)[4], const Tile& tile, int k,
                                     int n) {
  uint32_t first[4], second[4];
  LoadRight(first, tile, k, n);
  LoadRight(second, tile, k, n + 16);
  MultiplyAdd16(c, a, first);
  MultiplyAdd16(c + 2, a, second);
}

// A lane's word of four tiles of 8 columns becomes the four words of one of the tiles, number
// lane mod 4: the lanes of a quad hold a row.
__device__ inline uint4 GatherRow(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  const bool odd = threadIdx.x % 2 != 0, high = threadIdx.x / 2 % 2 != 0;
  const uint32_t ab = __shfl_xor_sync(~0u, odd ? a : b, 1);
  const uint32_t cd = __shfl_xor_sync(~0u, odd ? c : d, 1);
  a = odd ? ab : a, b = odd ? b : ab;
  c = odd ? cd : c, d = odd ? d : cd;
  const uint32_t first = __shfl_xor_sync(~0u, high ? a : c, 2);
  const uint32_t second = __shfl_xor_sync(~0u, high ? b : d, 2);
  return make_uint4(high ? first : a, high ? second : b, high ? c : first, high ? d : second);
}
// fn(row, column, eight): 32 columns in pieces of eight bf16. All lanes of the warp.
template <class Fn>
__device__ inline void ForEachEight(const float (*c)[4], const Fn& fn) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    fn(lane / 4 + 8 * i, lane % 4 * 8,
       GatherRow(Halves(c[0][2 * i], c[0][2 * i + 1]), Halves(c[1][2 * i], c[1][2 * i + 1]),
                 Halves(c[2][2 * i], c[2][2 * i + 1]), Halves(c[3][2 * i], c[3][2 * i + 1])));
  }
}
__device__ inline void StoreEight(bf16* to, uint4 eight, bool add = false) {
  if (add) {
    const uint4 there = *reinterpret_cast<const uint4*>(to);
    const auto sum = [](uint32_t a, uint32_t b) {
      return Halves(LowerHalf(a) + LowerHalf(b), UpperHalf(a) + UpperHalf(b));
    };
    eight = make_uint4(sum(eight.x, there.x), sum(eight.y, there.y), sum(eight.z, there.z),
                       sum(eight.w, there.w));
  }
  __stwb(reinterpret_cast<uint4*>(to), eight);  // a mere assignment is taken apart
}

// fn(row, column, x, y) of 16 columns: x at (row, column), y its right neighbour.
template <class Fn>
__device__ inline void ForEachPair16(float (*c)[4], const Fn& fn) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float* at = c[i / 2] + i % 2 * 2;
    fn(lane / 4 + i % 2 * 8, lane % 4 * 2 + i / 2 * 8, at[0], at[1]);
  }
}

}  // namespace lt2::cuda
