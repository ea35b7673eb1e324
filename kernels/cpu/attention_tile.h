// What the forward and backward attention tiles share: which keys a tile of queries visits, and
// scores with the queries along the vector lanes.
//
// A tile is up to 64 queries of one document and head. Scores are kept transposed, [keys, queries]:
// maxima and sums over keys are then elementwise, and keys and values are read in place, one
// element at a time, whatever their head size.
#pragma once

#include <algorithm>

#include "kernels/attention.h"
#include "kernels/cpu/micro_gemm.h"

namespace lt2::cpu {

inline constexpr int64_t kQueryTile = kChunk;  // the query chunks of Documents are the tiles
inline constexpr int64_t kKeyTile = 64;
inline constexpr int64_t kBandKeyTile = 16;  // on the diagonal and the window's edge

// Finite, so that (masked - masked) is not NaN; exp of anything less it is 0.
inline constexpr double kMasked = -1e30;

// Keys [key, key + keys) against lanes [first_lane, end_lane) of the query tile: a multiple of
// whole vectors that holds every visible pair. `masked`: some pairs in it are not visible.
struct KeyBlock {
  int64_t key, keys, first_lane, end_lane;
  bool masked;
  int64_t lanes() const { return end_lane - first_lane; }
};

// Calls visit(KeyBlock) for the keys that queries [query, query + queries) of a document beginning
// at `begin` may see, in order.
template <class T, class Visit>
void ForEachKeyBlock(int64_t begin, int64_t query, int64_t queries, int64_t window,
                     const Visit& visit) {
  constexpr int64_t kLanes = kMicroLanes<T>;
  const int64_t end = query + queries;
  int64_t key = window > 0 ? std::max(begin, query - window + 1) : begin;
  while (key < end) {
    // Every query sees [first_common, query]; keys outside come in narrow blocks, few lanes each.
    const int64_t first_common = window > 0 ? std::max(begin, end - window) : begin;
    const bool common = key >= first_common && key <= query;
    int64_t keys = std::min(common ? kKeyTile : kBandKeyTile, end - key);
    if (common) keys = std::min(keys, query + 1 - key);
    if (key < first_common && first_common <= query) keys = std::min(keys, first_common - key);
    KeyBlock block{
        .key = key, .keys = keys, .first_lane = 0, .end_lane = kQueryTile, .masked = !common};
    if (key > query) block.first_lane = (key - query) / kLanes * kLanes;
    const int64_t last_lane = window > 0 ? key + keys - 1 + window - query : kQueryTile;
    block.end_lane = std::min(PadToLanes<T>(std::min(last_lane, queries)), kQueryTile);
    if (block.end_lane > block.first_lane) visit(block);
    key += keys;
  }
}

// Writes `value` over the invisible pairs of a block of scores s [keys, kQueryTile].
template <class T>
void MaskBlock(const KeyBlock& block, int64_t query, int64_t window, T value, T* s) {
  for (int64_t n = 0; n < block.keys; ++n) {
    T* row = s + n * kQueryTile;
    const int64_t first = block.key + n - query;  // the key's own lane
    const int64_t end = window > 0 ? first + window : block.end_lane;
    std::fill(row + block.first_lane, row + std::clamp(first, block.first_lane, block.end_lane),
              value);
    std::fill(row + std::clamp(end, block.first_lane, block.end_lane), row + block.end_lane, value);
  }
}

// to [width, kQueryTile] = factor · from [rows, width]ᵀ, zero beyond `rows`.
template <class T>
void PackLanes(const T* from, int64_t stride, int64_t rows, int64_t width, T factor, T* to) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t d = 0; d < width; ++d) to[d * kQueryTile + r] = factor * from[r * stride + d];
  }
  for (int64_t d = 0; d < width; ++d) {
    std::fill(to + d * kQueryTile + rows, to + (d + 1) * kQueryTile, T(0));
  }
}

// to [kQueryTile, PadToLanes(width)] = factor · from, zero beyond rows and width.
template <class T>
void PackRows(const T* from, int64_t stride, int64_t rows, int64_t width, T factor, T* to) {
  const int64_t padded = PadToLanes<T>(width);
  for (int64_t r = 0; r < kQueryTile; ++r, to += padded) {
    const int64_t filled = r < rows ? width : 0;
    for (int64_t d = 0; d < filled; ++d) to[d] = factor * from[r * stride + d];
    std::fill(to + filled, to + padded, T(0));
  }
}

}  // namespace lt2::cpu
