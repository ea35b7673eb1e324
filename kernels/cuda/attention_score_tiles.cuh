// ds of attention on its way from the kernel that has it for dk and dv to the one that sums dq:
// rounded, in tiles of 64 keys and 64 queries, those of keys after the queries left out.
//
// A tile is a panel (warpgroup.cuh): a row a key, its 16-byte pieces permuted by the row. Columns
// are the queries, those of each 32 permuted so that a thread's products are pieces: column
// 8 q + 2 j + i is query 8 j + 2 q + i.
#pragma once

#include "kernels/attention_workspace.h"
#include "kernels/cuda/attention_panels.cuh"

namespace lt2::cuda {

struct ScoreTiles {
  static constexpr int kBytes = AttentionWorkspace::kTileBytes;
  unsigned char* data;      // null: they are not kept
  const int* tiles_before;  // in the documents before each
  int64_t of_head;
  int head_begin;  // heads that are kept begin here

  // Of query block b and key block a ≤ b of a document with so many tiles before it.
  __device__ unsigned char* At(int head, int before, int b, int a) const {
    return data + kBytes * ((head - head_begin) * of_head + (before + b * (b + 1) / 2 + a));
  }
};

// A group's ds [64 keys, 64 queries], packed.
template <class Tile>
__device__ inline void StoreScores(unsigned char* tile, const PackedScores<Tile>& ds) {
  static_assert(Tile::kStream == 64);
  const int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * Tile::kWarpRows + lane / 4;
  const uint32_t at = PanelOffset(64, row, lane % 4);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int part = 0; part < 2; ++part) {  // 32 queries
      const auto& low = ds.of_step[2 * part];
      const auto& high = ds.of_step[2 * part + 1];
      *reinterpret_cast<uint4*>(tile + (at ^ part * 64) + half * 8 * kPanelRowBytes) = {
          low[half], low[2 + half], high[half], high[2 + half]};
    }
  }
}

// Where the lane's first row of a product with a tile as its a (transposed) is among the queries;
// its second is kSecondQuery after it.
inline constexpr int kSecondQuery = 2;
__device__ inline int QueryOfLane() {
  const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
  return warp / 2 * 32 + lane / 8 * 8 + warp % 2 * 4 + lane / 4 % 2;
}

// Of `heads` heads from ds.head_begin on; taken: 0 on the GPU.
void WarpgroupQuerySums(const Stream& stream, const AttentionBackwardArgs& args,
                        const ScoreTiles& ds, int heads, int* taken);

}  // namespace lt2::cuda
