// What sizes the kernels of GPUs take. They hold their arguments to it, and a configuration is held
// to it before a run begins (model/size_limits.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

namespace lt2::gpu {

// Channels of a key, in every scan.
inline constexpr int64_t kMostScanKeys = 256;
// Of a model with an exit gate: a kernel gets a pointer for each.
inline constexpr int64_t kMostExitLoops = 64;
// Of lists of the tokens that a key is read by: queries × keys of each.
inline constexpr int64_t kMostListEntries = std::numeric_limits<int32_t>::max();

// Elements of a row that is normed: 256 threads hold it, in pieces of 8 or one by one.
constexpr int64_t MostNormedRow(int64_t row) { return row % 8 == 0 ? 16384 : 8192; }

// Channels of a query and a value together where attention is computed plainly: a block's four
// warps have 64 floats and so many sums each in 48 KiB.
inline constexpr int64_t kMostPlainAttention = 48 * 1024 / (4 * 4) - 64;

// Bytes of shared memory that a block has for a tile of keys, beside some small arrays.
inline constexpr int64_t kMostTileBytes = 224 * 1024;
inline constexpr int64_t kTileKeys = 128, kTileStride = kTileKeys + 1, kHeadLanes = 8;
// Heads side by side, in whole lanes.
constexpr int64_t PaddedHeads(int64_t heads) {
  return (heads + kHeadLanes - 1) / kHeadLanes * kHeadLanes;
}
constexpr int64_t TileBytes(int64_t channels) { return channels * kTileStride * 4; }

// What the kernels that go over tiles of keys want; `heads` of a group that chooses blocks.
constexpr int64_t SelectBlocksBytes(int64_t heads, int64_t channels) {
  return (channels + 2) * PaddedHeads(heads) * 8 + TileBytes(channels);
}
constexpr int64_t IndexerBytes(int64_t heads, int64_t channels) {
  return (channels + 1) * PaddedHeads(heads) * 8 + TileBytes(channels);
}
// The indexer's heads and channels, and those of the attention that it learns from, whose keys come
// in panels of so many channels. `share`: heads of a key.
inline constexpr int64_t kLossPanel = 256;
constexpr int64_t IndexerLossBytes(int64_t index_heads, int64_t index_channels, int64_t heads,
                                   int64_t share, int64_t channels) {
  const int64_t sums = channels > kLossPanel ? share * kTileKeys * 4 : 0;
  return (index_channels + 1) * PaddedHeads(index_heads) * 8 + heads * channels * 4 + sums +
         TileBytes(std::max(index_channels, std::min(channels, kLossPanel)));
}

}  // namespace lt2::gpu
