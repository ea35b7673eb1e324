// Tiles of attention for products of a warpgroup: two warpgroups take 64 rows each of a block's
// 128; their other operands are panels in shared memory (warpgroup.cuh).
#pragma once

#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/warpgroup.cuh"

namespace lt2::cuda {

template <int width, int stream>
struct PanelTile {
  static constexpr int kWidth = width, kTiles = 1, kWarps = 8, kStream = stream;
  static constexpr int kThreads = 32 * kWarps, kRows = 128, kWarpRows = 16, kGroupRows = 64;
  static constexpr int kRowBytes = 2 * kRows * kWidth, kStreamBytes = 2 * kStream * kWidth;
  static_assert(kWidth % kPanelColumns == 0 && (kStream == 64 || kStream == 128));
};
inline constexpr int kPanelAlignment = 1024;

__device__ inline uint32_t AlignedShared() {
  return (SharedAddress(DynamicShared()) + kPanelAlignment - 1) / kPanelAlignment * kPanelAlignment;
}

// As CopyRows, to panels.
template <class Tile, int kRows>
__device__ inline void CopyPanels(uint32_t to, const HeadRows& from, int head, int first, int end) {
  constexpr int kPieces = Tile::kWidth / 8, kStep = Tile::kThreads / kPieces;
  static_assert(kStep % 8 == 0 && kRows % kStep == 0);  // a thread's pieces are permuted alike
  const int row = threadIdx.x / kPieces, piece = threadIdx.x % kPieces;
  const bf16* source = from.data + (first + row) * from.stride + head * from.size + 8 * piece;
  const int left = 8 * piece < from.size ? end - first - row : 0;
  to += PanelOffset(kRows, row, piece);
#pragma unroll
  for (int n = 0; n < kRows; n += kStep) {
    CopyAsync16(to + n * kPanelRowBytes, source, n < left);
    source += kStep * from.stride;
  }
}

// Queues s = a bᵀ; a: the group's 64 rows of a tile of Tile::kRows; b: a streamed tile.
template <class Tile>
__device__ inline void QueueScores(Scores<Tile>& s, uint32_t a, uint32_t b) {
  auto& flat = reinterpret_cast<float(&)[Tile::kStream / 2]>(s);
  const uint64_t of_a = Descriptor(a, 16), of_b = Descriptor(b, 16);
#pragma unroll
  for (int k = 0; k < Tile::kWidth; k += 16) {
    const int panel = k / kPanelColumns, within = k % kPanelColumns * 2;
    MultiplyShared(flat, of_a + (panel * Tile::kRows * kPanelRowBytes + within) / 16,
                   of_b + (panel * Tile::kStream * kPanelRowBytes + within) / 16, k > 0);
  }
}

// Scores rounded to bf16, as an a operand in registers.
template <class Tile>
struct Packed {
  uint32_t of_step[Tile::kStream / 16][4];
};
template <class Tile>
__device__ inline void Pack(Packed<Tile>& a, const Scores<Tile>& p) {
#pragma unroll
  for (int k = 0; k < Tile::kStream / 16; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* pair = p[0][2 * k + i / 2] + i % 2 * 2;
      a.of_step[k][i] = Pack(pair[0], pair[1]);
    }
  }
}

// Queues sums += a b; b: a streamed tile.
template <class Tile>
__device__ inline void QueueRows(RowSums<Tile>& sums, const Packed<Tile>& a, uint32_t b) {
  auto& flat = reinterpret_cast<float(&)[Tile::kWidth / 2]>(sums);
  const uint64_t of_b = Descriptor(b, Tile::kStream * kPanelRowBytes);
#pragma unroll
  for (int k = 0; k < Tile::kStream / 16; ++k) {
    MultiplyTransposed(flat, a.of_step[k], of_b + k * 16 * kPanelRowBytes / 16, true);
  }
}

}  // namespace lt2::cuda
