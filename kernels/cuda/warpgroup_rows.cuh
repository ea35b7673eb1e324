// What a warpgroup does with a product's rows between products (warpgroup.cuh): makes them the next
// product's left operand, puts them into shared tiles and from there into global memory.
//
// Lane l of warp w of the group holds rows 16 w + l / 4 and that + 8, columns 8 j + 2 (l mod 4) and
// the next, at 4 j and 4 j + 2 of its sums.
#pragma once

#include "kernels/cuda/piece.cuh"
#include "kernels/cuda/warpgroup.cuh"

namespace lt2::cuda {

__device__ inline int RowOfGroup() { return threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4; }

// x itself, but what follows from it is computed anew: so that long loops hold no registers for it.
__device__ inline uint32_t Anew(uint32_t x) {
  asm volatile("" : "+r"(x));
  return x;
}

// fn(i, column, x, y): x in row RowOfGroup() + 8 i and that column, y its right neighbour.
template <int n, class Fn>
__device__ inline void ForEachPair(float (&c)[n], const Fn& fn) {
  const int column = threadIdx.x % 4 * 2;
#pragma unroll
  for (int i = 0; i < n; i += 2) fn(i / 2 % 2, column + i / 4 * 8, c[i], c[i + 1]);
}

// Sums c as pairs of bf16: the left operand of 16 inner indices after the other.
template <int n>
__device__ inline void PackRows(const float (&c)[n], uint32_t (&a)[n / 8][4]) {
#pragma unroll
  for (int i = 0; i < n / 2; ++i) a[i / 4][i % 4] = Pack(c[2 * i], c[2 * i + 1]);
}

// Of a tile of 64 rows: the pair in row `row` + 8 i and that column.
__device__ inline uint32_t* PairAt(unsigned char* tile, uint32_t row, int i, uint32_t column) {
  const uint32_t first = row * kPanelRowBytes + row % 8 * 16 + column % 8 * 2;
  const uint32_t at = (column / 64 * 64 + 8 * i) * kPanelRowBytes;
  return reinterpret_cast<uint32_t*>(tile + at + (first ^ column / 8 % 8 * 16));
}
__device__ inline float2 GetPair(unsigned char* tile, uint32_t row, int i, uint32_t column) {
  const uint32_t two = *PairAt(tile, row, i, column);
  return make_float2(LowerHalf(two), UpperHalf(two));
}
// What PackRows gave, or sums themselves; row: RowOfGroup().
template <int n>
__device__ inline void PutRows(unsigned char* tile, uint32_t row, const uint32_t (&a)[n][4]) {
  const uint32_t column = threadIdx.x % 4 * 2;
#pragma unroll
  for (int i = 0; i < 4 * n; ++i) *PairAt(tile, row, i % 2, column + i / 2 * 8) = a[i / 4][i % 4];
}
template <int n>
__device__ inline void PutRows(unsigned char* tile, uint32_t row, const float (&c)[n]) {
  const uint32_t column = threadIdx.x % 4 * 2;
#pragma unroll
  for (int i = 0; i < n / 2; ++i) {
    *PairAt(tile, row, i % 2, column + i / 2 * 8) = Pack(c[2 * i], c[2 * i + 1]);
  }
}

// a = x^T, x a tile [64, 64]: the group's rows are x's columns.
__device__ inline void LoadTransposed(uint32_t (&a)[4][4], uint32_t tile) {
  const int lane = threadIdx.x % 32, piece = threadIdx.x % 128 / 32 * 2 + lane / 8 % 2;
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    const int row = 16 * step + lane % 8 + lane / 16 * 8;
    LoadTransposed(a[step], tile + PanelOffset(64, row, piece));
  }
}

// Sums over a row's columns, complete in each of its lanes.
__device__ inline float SumOfRow(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

// to [rows, columns] (rows `stride` apart) = or += the tile, kPieces of 16 bytes a row: a warp its
// own 16 rows.
template <int kPieces>
__device__ inline void StoreRows(const unsigned char* tile, bf16* to, int64_t stride, int rows,
                                 int columns, bool add) {
  const uint32_t thread = Anew(threadIdx.x);
#pragma unroll
  for (int n = 0; n < 16 * kPieces; n += 32) {
    const uint32_t i = n + thread % 32;
    const int row = thread % 128 / 32 * 16 + i / kPieces, piece = i % kPieces;
    if (row >= rows || piece * 8 >= columns) continue;
    const unsigned char* from = tile + PanelOffset(64, row, piece);
    bf16* at = to + row * stride + piece * 8;
    if (add) {
      StoreOrAdd<8>(at, Load<8>(reinterpret_cast<const bf16*>(from)), true);
    } else {
      *reinterpret_cast<uint4*>(at) = *reinterpret_cast<const uint4*>(from);
    }
  }
}

}  // namespace lt2::cuda
