// Tiles of attention for products of a warpgroup (warpgroup.cuh), and the block that computes with
// them: two warpgroups take 64 rows each of a tile of 128, one warp of a third copies what they
// read ahead of them (bulk_copy.cuh).
#pragma once

#include "kernels/cuda/attention_items.cuh"
#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/bulk_copy.cuh"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/warpgroup.cuh"

namespace lt2::cuda {

// kWarps that compute; of kThreads, that is not all.
template <int width, int stream>
struct PanelTile {
  static constexpr int kWidth = width, kTiles = 1, kWarps = 8, kStream = stream;
  static constexpr int kThreads = 32 * kWarps + 128, kRows = 128, kWarpRows = 16;
  static constexpr int kGroupRows = 64;
  static constexpr int kGroupBytes = 2 * kGroupRows * kWidth, kRowBytes = 2 * kGroupBytes;
  static constexpr int kStreamBytes = 2 * kStream * kWidth;
  static_assert(kWidth % kPanelColumns == 0 && (kStream == 64 || kStream == 128));
};
inline constexpr int kPanelAlignment = 1024;
// A block begins with 168 registers a thread; then the warpgroup that copies keeps few, and those
// that compute have the others.
template <int kCopying, int kComputing, class Copy, class Compute>
__device__ inline void ShareWork(const Copy& copy, const Compute& compute) {
  static_assert(kCopying + 2 * kComputing <= 3 * 168);
  if (WarpgroupIndex() == 2) {
    ShrinkRegisters<kCopying>();
    if (threadIdx.x % 128 < 32) copy();
  } else {
    GrowRegisters<kComputing>();
    compute();
  }
}

__device__ inline uint32_t AlignedShared() {
  return (SharedAddress(DynamicShared()) + kPanelAlignment - 1) / kPanelAlignment * kPanelAlignment;
}
__device__ inline unsigned char* SharedPointer(uint32_t address) {
  return DynamicShared() + (address - SharedAddress(DynamicShared()));
}

// Starts copying rows [row, row + kRows) of a head to panels; map: PanelMap of kRows.
template <int kWidth, int kRows>
__device__ inline void CopyPanels(uint32_t to, const CUtensorMap& map, uint32_t barrier, int head,
                                  int row) {
#pragma unroll
  for (int column = 0; column < kWidth; column += kPanelColumns) {
    CopyBox(to + column * kRows * 2, map, barrier, column, head, row);
  }
}
// Two tiles of kGroupRows, one of each warpgroup.
template <class Tile>
__device__ inline void CopyGroups(uint32_t to, const CUtensorMap& map, uint32_t barrier, int head,
                                  int row) {
  CopyPanels<Tile::kWidth, Tile::kGroupRows>(to, map, barrier, head, row);
  CopyPanels<Tile::kWidth, Tile::kGroupRows>(to + Tile::kGroupBytes, map, barrier, head,
                                             row + Tile::kGroupRows);
}

// Queues s = a bᵀ; a: the group's tile; b: a streamed tile.
template <class Tile>
__device__ inline void QueueScores(Scores<Tile>& s, uint32_t a, uint32_t b) {
  auto& flat = reinterpret_cast<float(&)[Tile::kStream / 2]>(s);
  const uint64_t of_a = Descriptor(a, 16), of_b = Descriptor(b, 16);
#pragma unroll
  for (int k = 0; k < Tile::kWidth; k += 16) {
    const int panel = k / kPanelColumns, within = k % kPanelColumns * 2;
    MultiplyShared(flat, of_a + (panel * Tile::kGroupRows * kPanelRowBytes + within) / 16,
                   of_b + (panel * Tile::kStream * kPanelRowBytes + within) / 16, k > 0);
  }
}

// Scores rounded to bf16, as an a operand in registers.
template <class Tile>
struct PackedScores {
  uint32_t of_step[Tile::kStream / 16][4];
};
template <class Tile>
__device__ inline void Pack(PackedScores<Tile>& a, const Scores<Tile>& p) {
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
__device__ inline void QueueRows(RowSums<Tile>& sums, const PackedScores<Tile>& a, uint32_t b) {
  auto& flat = reinterpret_cast<float(&)[Tile::kWidth / 2]>(sums);
  const uint64_t of_b = Descriptor(b, Tile::kStream * kPanelRowBytes);
#pragma unroll
  for (int k = 0; k < Tile::kStream / 16; ++k) {
    MultiplyTransposed(flat, a.of_step[k], of_b + k * 16 * kPanelRowBytes / 16, true);
  }
}

}  // namespace lt2::cuda
