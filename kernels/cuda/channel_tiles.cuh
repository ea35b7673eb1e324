// Sums over pairs of a chunk's rows under a log-decay per channel (scan_pairs.cuh), in bf16 for at
// most 128 channels, with every operand scaled once.
//
// Rows come in tiles of 16. With p_r the decay from a tile's start through row r, s_j that after
// row j to its tile's end and G' that of whole tiles, row r of tile i and row j of tile i' < i meet
// with D_rj = exp(p_r + sum of G' between the tiles + s_j). A warp has a tile of rows, of
// x exp(p); y exp(s) is everybody's; what lies between belongs to both tiles alone and goes on top
// in the warp's registers. In one tile it is exp(-G'), which is no more than a float and a bf16
// hold unless the tile forgets by more than exp(-64): such channels are summed pair by pair. All
// other exponents are at most 0 and sums of terms of one sign: nothing cancels.
#pragma once

#include "kernels/cuda/scan_chunk.cuh"
#include "kernels/cuda/warp_tiles.cuh"

namespace lt2::cuda {

// Rows of one chunk and head before any scaling, `g` their decays.
struct ChannelRows {
  const bf16 *x, *y;
  const float* g;
  int64_t stride, g_stride;
};

class ChannelTiles {
 public:
  static constexpr int kMostChannels = 128;
  static constexpr int kTotals = kTiles * kMostChannels, kFactors = 2 * kTotals;
  static constexpr float kHard = -64;

  // Floats in shared memory: totals, G' of each tile, until Scale has returned for all threads;
  // factors that follow from it after that. A thread has two channels of a tile.
  __device__ ChannelTiles(float* totals, float* factors, int channels)
      : total_(totals),
        factors_(factors),
        channels_(channels),
        tile_(threadIdx.x / (TileWidth(channels) / 2)),
        channel_(threadIdx.x % (TileWidth(channels) / 2) * 2) {}

  // g [rows, channels]. A __syncthreads() between this and Scale, and after Scale. All threads.
  __device__ void Load(const float* g, int64_t stride, int rows) {
    if (tile_ >= kTiles) return;
    float2 total = {0, 0};
#pragma unroll
    for (int i = 0; i < kTile; ++i) {
      const int r = tile_ * kTile + i;
      g_[i] = r < rows && channel_ < channels_
                  ? *reinterpret_cast<const float2*>(g + r * stride + channel_)
                  : make_float2(0, 0);
    }
#pragma unroll
    for (int i = 0; i < kTile; ++i) total.x += g_[i].x, total.y += g_[i].y;
    *reinterpret_cast<float2*>(total_ + tile_ * kMostChannels + channel_) = total;
  }

  struct Scaled {
    bf16 *read, *write;  // scale exp(G) x and exp(G_C - G) y, [64, padded]
    float* decay;        // exp(G_C) [padded]
  };
  // x becomes x exp(p), y becomes y exp(s), y_from is y exp(p).
  __device__ void Scale(const Tile& x, const Tile& y, const Tile& y_from, float scale,
                        const Scaled& to) const {
    if (tile_ < kTiles) ScaleFromStart(x, y, y_from, scale, to);
    __syncthreads();  // lest the compiler mixes the two, for which registers are too few
    if (tile_ < kTiles) ScaleToEnd(y, to);
  }

  // sums [8 times 8 columns] += E of a tile's rows and all before them, from what Scale left in
  // x and y. What is above the diagonal has no meaning.
  __device__ void AddProducts(const Tile& x, const Tile& y, int tile, float (&sums)[8][4]) const {
    const int column = threadIdx.x % 4 * 2;
    for (int c = 0; c < PaddedWidth(channels_); c += 16) {
      uint32_t whole[4];
      LoadLeft(whole, x, tile * kTile, c);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        if (t > tile) break;
        uint32_t b[4];
        LoadRightTransposed(b, y, c, t * kTile);
        if (t + 1 == tile) {
          MultiplyAdd16(sums + 2 * t, whole, b);
          continue;
        }
        const float* factor = Between(tile, t) + c + column;
        uint32_t a[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) a[i] = Times(whole[i], Pair(factor + i / 2 * 8));
        MultiplyAdd16(sums + 2 * t, a, b);
      }
    }
  }

  // What AddProducts leaves out: pairs of one tile in channels that forget too much there. Whether
  // there are any; to [16, 16] in shared memory, the warp's, up to the diagonal.
  __device__ bool SumHardDecays(const ChannelRows& of, int tile, int rows, float* to,
                                int to_stride) const {
    const int lane = threadIdx.x % 32, r = lane % kTile, row = tile * kTile + r;
    float by_distance[kTile] = {};  // of row r and the row so many before it
    bool any = false;
    for (int first = 0; first < channels_; first += 32) {
      const int mine = first + lane;
      uint32_t hard =
          __ballot_sync(~0u, mine < channels_ && factors_[tile * kMostChannels + mine] == 0);
      any = any || hard != 0;
      for (; hard != 0; hard &= hard - 1) {
        const int c = first + __ffs(hard) - 1;
        const bool there = row < rows;
        const float x = there ? Get(of.x, row * of.stride + c) : 0;
        const float y = there ? Get(of.y, row * of.stride + c) : 0;
        const float g = there ? of.g[row * of.g_stride + c] : 0;
        by_distance[0] += x * y;
        float sum = 0;
#pragma unroll
        for (int d = 1; d < kTile; ++d) {
          sum += __shfl_up_sync(~0u, g, d - 1);
          const float earlier = __shfl_up_sync(~0u, y, d);
          if (r >= d) by_distance[d] += x * earlier * __expf(sum);
        }
      }
    }
    if (!any) return false;
#pragma unroll
    for (int d = 0; d < kTile; ++d) {
      if (lane < kTile && d <= r) to[r * to_stride + r - d] = by_distance[d];
    }
    __syncwarp();
    return true;
  }
  // From there to sums.
  __device__ void AddHardDecays(const float* from, int from_stride, int tile,
                                float (&sums)[8][4]) const {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      if (t != tile) continue;
      ForEachPair16(sums + 2 * t, [&](int r, int c, float& x, float& y) {
        if (c <= r) x += from[r * from_stride + c];
        if (c + 1 <= r) y += from[r * from_stride + c + 1];
      });
    }
    __syncwarp();
  }

  // exp of a tile's G', but the last's, of a channel and its neighbour.
  __device__ float2 Whole(int tile, int channel) const {
    return Pair(factors_ + (kTiles + tile) * kMostChannels + channel);
  }

 private:
  __device__ void ScaleFromStart(const Tile& x, const Tile& y, const Tile& y_from, float scale,
                                 const Scaled& to) const {
    const int padded = PaddedWidth(channels_), first = tile_ * kTile;
    const bool stored = channel_ < padded;
    const float2 before = Sum(0, tile_, channel_);
    const float2 read = {scale * __expf(before.x), scale * __expf(before.y)};
    bf16* row = to.read + first * padded;
    float2 p = {0, 0};
#pragma unroll
    for (int i = 0; i < kTile; ++i, row += padded) {
      p.x += g_[i].x, p.y += g_[i].y;
      const float2 factor = {__expf(p.x), __expf(p.y)};
      const float2 of_x = Times(Pair(x, first + i), factor);
      Put(x.Row(first + i), of_x);
      Put(y_from.Row(first + i), Times(Pair(y, first + i), factor));
      if (stored) Put(row, Times(of_x, read));
    }
  }
  __device__ void ScaleToEnd(const Tile& y, const Scaled& to) const {
    const int padded = PaddedWidth(channels_), first = tile_ * kTile;
    const bool stored = channel_ < padded;
    if (tile_ == 0 && stored) {
      const float2 all = Sum(0, kTiles, channel_);
      *reinterpret_cast<float2*>(to.decay + channel_) = make_float2(__expf(all.x), __expf(all.y));
    }
    PutFactors();
    const float2 after = Sum(tile_ + 1, kTiles, channel_);
    const float2 write = {__expf(after.x), __expf(after.y)};
    bf16* row = to.write + (first + kTile) * padded;
    float2 s = {0, 0};
#pragma unroll
    for (int i = kTile - 1; i >= 0; --i) {
      const float2 of_y = Times(Pair(y, first + i), {__expf(s.x), __expf(s.y)});
      Put(y.Row(first + i), of_y);
      row -= padded;
      if (stored) Put(row, Times(of_y, write));
      s.x += g_[i].x, s.y += g_[i].y;
    }
  }
  // Rows of factors: exp(-G') of each tile, or 0 where that is hard; exp(G') of the first three; of
  // the two in the middle together.
  __device__ void PutFactors() const {
    const float2 own = Sum(tile_, tile_ + 1, channel_);
    const auto put = [&](int row, float x, float y) {
      *reinterpret_cast<float2*>(factors_ + row * kMostChannels + channel_) = make_float2(x, y);
    };
    put(tile_, own.x < kHard ? 0 : __expf(-own.x), own.y < kHard ? 0 : __expf(-own.y));
    const float2 other = tile_ + 1 < kTiles ? own : Sum(1, kTiles - 1, channel_);
    put(kTiles + tile_, __expf(other.x), __expf(other.y));
  }
  // What takes a row of `tile` to one of t, unless they are neighbours: exp of what lies between,
  // or of minus the tile itself.
  __device__ const float* Between(int tile, int t) const {
    const int row = t == tile ? t : t + 2 == tile ? kTiles + t + 1 : 2 * kTiles - 1;
    return factors_ + row * kMostChannels;
  }
  // G' of tiles [begin, end).
  __device__ float2 Sum(int begin, int end, int channel) const {
    float2 sum = {0, 0};
    for (int t = begin; t < end; ++t) {
      const float2 of = Pair(total_ + t * kMostChannels + channel);
      sum.x += of.x, sum.y += of.y;
    }
    return sum;
  }
  __device__ static float2 Times(float2 a, float2 b) { return {a.x * b.x, a.y * b.y}; }
  __device__ static uint32_t Times(uint32_t two, float2 by) {
    return Halves(LowerHalf(two) * by.x, UpperHalf(two) * by.y);
  }
  __device__ static float2 Pair(const float* at) { return *reinterpret_cast<const float2*>(at); }
  __device__ float2 Pair(const Tile& tile, int r) const {
    const uint32_t two = *reinterpret_cast<const uint32_t*>(tile.Row(r) + channel_);
    return {LowerHalf(two), UpperHalf(two)};
  }
  __device__ void Put(bf16* row, float2 pair) const {
    *reinterpret_cast<uint32_t*>(row + channel_) = Halves(pair.x, pair.y);
  }

  float *total_, *factors_;  // [tiles, kMostChannels], [2 tiles, kMostChannels]
  int channels_, tile_, channel_;
  float2 g_[kTile];
};

}  // namespace lt2::cuda
