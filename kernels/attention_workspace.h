// What attention's backward takes for itself on a GPU, in bf16 with products of warpgroups:
// gradients of scores on their way to dq (cuda/attention_score_tiles.cuh), in passes over the
// groups of heads, and what belongs to queries. The kernel takes, and a dry run counts, the same
// bytes.
#pragma once

#include "kernels/attention.h"

namespace lt2 {

struct AttentionWorkspace {
  static constexpr int64_t kMostWidth = 128;  // of heads, for warpgroups
  static constexpr int64_t kTileBytes = 64 * 64 * 2;
  // Tiles of as many heads are kept at a time as this holds; where it does not hold those of one
  // group, dq is computed from q and k again.
  static constexpr int64_t kMostTileBytes = int64_t{640} << 20;

  // Not for dq alone, nor where tiles of a group take too much.
  static bool Fits(const AttentionBackwardArgs& args);
  // Where it fits.
  explicit AttentionWorkspace(const AttentionBackwardArgs& args);

  bool keeps_tiles;
  int64_t tiles, stats_stride;  // of a head
  int groups_a_pass, passes;
  // Parts one after the other: tiles, float2s, integers.
  int64_t tile_bytes, stats, counters, bytes;
};

// Holds the bytes in a dry run (kMeta), while the call of AttentionBackward lasts; else undefined.
Tensor CountedWorkspace(const AttentionBackwardArgs& args);

}  // namespace lt2
