// PrepareDelta (scan_delta_prepare.cuh) in bf16 for keys of at most 128 channels: a block has a
// chunk of a head, two of its warps each tile of 16 rows. Everything is read once, results leave
// from registers, and three blocks share a multiprocessor.
//
// Without a decay per channel no operand is scaled: decays and beta go to sums over pairs and to
// columns of the inverse. With one, channel_tiles.cuh has the operands, and
//   W_r = sum over tiles t of exp(G' of the tiles before t) sum of j in t of -T_rj beta_j y_from_j
// is summed from the last tile to the first.
#pragma once

#include "kernels/cuda/scan_delta_layout.cuh"

namespace lt2::cuda {

template <bool kChannels, bool kBackward>
class DeltaChunkTiles {
 public:
  __device__ DeltaChunkTiles(const DeltaPreparation<bf16>& data, DeltaRows<kChannels>& rows)
      : data_(data),
        n_(data.in.shape),
        rows_(rows),
        tiles_(DeltaLayout(n_, kChannels)),
        channels_(tiles_.square.at, tiles_.factors, n_.k),
        item_(int64_t{blockIdx.y} * n_.heads + blockIdx.x),
        head_(static_cast<int>(blockIdx.x)),
        place_(n_.Place(static_cast<int>(blockIdx.y))),
        warp_(__shfl_sync(~0u, threadIdx.x / 32, 0)),
        half_(warp_ / kTiles),
        tile_(half_ == 0 ? warp_ : kPanelThreads / 32 - 1 - warp_) {}

  __device__ void Run() {
    if (place_.rows == 0) return;
    rows_.Fetch(data_.in.g_NG == nullptr ? nullptr : data_.in.g_NG + AtHead(1),
                data_.in.beta_NG + AtHead(1), n_.heads, place_.rows);
    CommitCopies();
    FetchTile<kPanelThreads>(tiles_.q, kPanel, data_.in.q_NHK + AtKey(), KeyStride(), place_.rows,
                             n_.k);
    FetchTile<kPanelThreads>(tiles_.k, kPanel, data_.in.k_NHK + AtKey(), KeyStride(), place_.rows,
                             n_.k);
    if constexpr (kChannels) {
      channels_.Load(data_.in.g_NGK + AtHead(n_.k), DecayStride(), place_.rows);
    } else {
      FetchValues();
    }
    CommitCopies();
    rows_.Finish(place_.rows);
    WaitForCopies();
    __syncthreads();
    if constexpr (kChannels) {
      channels_.Scale(tiles_.q, tiles_.k, tiles_.k_from, data_.in.scale,
                      {.read = Operand(data_.operands.q_read),
                       .write = Operand(data_.operands.k_write),
                       .decay = data_.operands.decay + item_ * PaddedWidth(n_.k)});
      __syncthreads();
    }

    float sums[8][4] = {};  // <k_r, k_j> D_rj of half the warps, <q_r, k_j> D_rj of the others
    AddPairs(sums);
    if constexpr (!kChannels) Decay(sums);
    uint32_t attention[8][2] = {};
    if (half_ == 0) {
      PutLower(sums);
      tiles_.square.InvertBlock(tile_);
    } else {
      if constexpr (!kChannels) StoreKeys();
      Attend(sums);
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        attention[i / 2][i % 2] = Halves(sums[i / 2][i % 2 * 2], sums[i / 2][i % 2 * 2 + 1]);
      }
    }
    __syncthreads();  // q and k are done with
    if constexpr (kBackward) {
      if (half_ == 1) PutAttention(attention);
    }
    if constexpr (kChannels) FetchValues();
    tiles_.square.InvertRest();
    WaitForCopies();
    __syncthreads();
    if constexpr (kBackward) StoreInverse();
    StoreValues();
    StoreW();
  }

 private:
  static constexpr int kHalves = 2;  // warps of a tile

  // The chunk's first row of the head, in x [N, G, width], or of its key head, in x [N, H, K].
  __device__ int64_t AtHead(int width) const {
    return (int64_t{place_.token} * n_.heads + head_) * width;
  }
  __device__ int64_t AtKey() const {
    const int key_head = n_.heads == n_.key_heads ? head_ : head_ / (n_.heads / n_.key_heads);
    return (int64_t{place_.token} * n_.key_heads + key_head) * n_.k;
  }
  __device__ int64_t KeyStride() const { return int64_t{n_.key_heads} * n_.k; }
  __device__ int64_t DecayStride() const { return int64_t{n_.heads} * n_.k; }
  __device__ int64_t ValueStride() const { return int64_t{n_.heads} * n_.v; }
  __device__ bf16* Operand(bf16* of_all) const { return data_.operands.Rows(of_all, item_, n_.k); }

  __device__ void FetchValues() const {
    const bf16* from = kBackward ? data_.d_o : data_.in.v_NGV;
    if (from != nullptr) from += AtHead(n_.v);
    FetchTile<kPanelThreads>(tiles_.values, kPanel, from, ValueStride(), place_.rows, n_.v);
  }

  __device__ void AddPairs(float (&sums)[8][4]) const {
    const Tile left = {half_ == 1 ? tiles_.q.at : tiles_.k_from.at, tiles_.k.stride};
    if constexpr (kChannels) {
      const ChannelRows of = {.x = (half_ == 0 ? data_.in.k_NHK : data_.in.q_NHK) + AtKey(),
                              .y = data_.in.k_NHK + AtKey(),
                              .g = data_.in.g_NGK + AtHead(n_.k),
                              .stride = KeyStride(),
                              .g_stride = DecayStride()};
      // A block of the square that nobody else has yet.
      const int next = (tile_ + 1) % kTiles;
      float* free = half_ == 0 ? tiles_.square.Block(tile_, tile_)
                               : tiles_.square.Block(min(tile_, next), max(tile_, next));
      const bool hard = channels_.SumHardDecays(of, tile_, place_.rows, free, LowerSquare::kStride);
      channels_.AddProducts(left, tiles_.k, tile_, sums);
      if (hard) channels_.AddHardDecays(free, LowerSquare::kStride, tile_, sums);
    } else {
      for (int c = 0; c < PaddedWidth(n_.k); c += 16) {
        uint32_t a[4];
        LoadLeft(a, left, tile_ * kTile, c);
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          if (t > tile_) break;
          uint32_t b[4];
          LoadRightTransposed(b, tiles_.k, c, t * kTile);
          MultiplyAdd16(sums + 2 * t, a, b);
        }
      }
    }
  }
  // Sums times D, up to the diagonal.
  __device__ void Decay(float (&sums)[8][4]) const {
    const int row = tile_ * kTile + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
    const float high[2] = {rows_.high[row], rows_.high[row + 8]};
    const float low[2] = {rows_.low[row], rows_.low[row + 8]};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (i / 2 > tile_) break;
      const auto of = [&](const float* x) {
        return *reinterpret_cast<const float2*>(x + column + 8 * i);
      };
      const float2 high_j = of(rows_.high), low_j = of(rows_.low);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        sums[i][2 * r] *= Exp2((high[r] - high_j.x) + (low[r] - low_j.x));
        sums[i][2 * r + 1] *= Exp2((high[r] - high_j.y) + (low[r] - low_j.y));
      }
    }
  }
  // fn(row, column, x, y) of the chunk over the sums' tiles up to the diagonal.
  template <class Fn>
  __device__ void ForEachSum(float (&sums)[8][4], const Fn& fn) const {
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      if (t > tile_) break;
      ForEachPair16(sums + 2 * t, [&](int r, int c, float& x, float& y) {
        fn(tile_ * kTile + r, t * kTile + c, x, y);
      });
    }
  }

  // A.
  __device__ void PutLower(float (&sums)[8][4]) const {
    const int first = tile_ * kTile + threadIdx.x % 32 / 4;
    const float low = rows_.beta[first], high = rows_.beta[first + 8];
    ForEachSum(sums, [&](int r, int c, float x, float y) {
      const float of_row = r == first ? low : high;
      *reinterpret_cast<float2*>(tiles_.square.at + r * LowerSquare::kStride + c) =
          make_float2(c < r ? of_row * x : 0, c + 1 < r ? of_row * y : 0);
    });
    __syncwarp();
  }
  // Sums become P, which the forward stores.
  __device__ void Attend(float (&sums)[8][4]) const {
    const float scale = data_.in.scale;
    ForEachSum(sums, [&](int r, int c, float& x, float& y) {
      x = c <= r ? scale * x : 0, y = c + 1 <= r ? scale * y : 0;
    });
    if (kBackward || data_.operands.attention == nullptr) return;
    bf16* to = data_.operands.Square(data_.operands.attention, item_) + tile_ * kTile * kPanel;
#pragma unroll
    for (int first = 0; first < kPanel; first += kTileColumns) {
      ForEachEight(sums + first / 8, [&](int r, int c, const uint4& eight) {
        StoreEight(to + r * kPanel + first + c, eight);
      });
    }
  }
  __device__ void PutAttention(const uint32_t (&rows)[8][2]) const {
    const int row = tile_ * kTile + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      if (i / 4 > tile_) break;
      bf16* to = tiles_.attention.Row(row + i % 2 * 8) + i / 2 * 8 + column;
      *reinterpret_cast<uint32_t*>(to) = rows[i / 2][i % 2];
    }
  }

  // k_write, the decay and q_read or its scale: the rows of the warp's tile.
  __device__ void StoreKeys() const {
    const int lane = threadIdx.x % 32, padded = PaddedWidth(n_.k), c = lane % 16 * 8;
    const auto store = [&](const Tile& tile, const float* factors, float scale, bf16* of_all) {
      if (c >= padded) return;
      const int first = tile_ * kTile + lane / 16;
      const bf16* from = tile.Row(first) + c;
      bf16* to = Operand(of_all) + first * padded + c;
#pragma unroll 2
      for (int r = 0; r < kTile; r += 2, from += 2 * tile.stride, to += 2 * padded) {
        const float factor = scale * factors[first + r];
        const Piece<8> x = Load<8>(from);
        const auto two = [&](int i) { return Halves(factor * x[i], factor * x[i + 1]); };
        StoreEight(to, make_uint4(two(0), two(2), two(4), two(6)));
      }
    };
    store(tiles_.k, rows_.decays.to_end, 1, data_.operands.k_write);
    if (data_.operands.q_read != nullptr) {
      store(tiles_.q, rows_.decays.from_start, data_.in.scale, data_.operands.q_read);
    }
    const int i = tile_ * 32 + lane;
    if (data_.read_scale != nullptr && i < kPanel) {
      data_.read_scale[item_ * kPanel + i] = data_.in.scale * rows_.decays.from_start[i];
    }
    if (i < padded) data_.operands.decay[item_ * padded + i] = rows_.decays.whole;
  }

  __device__ void StoreInverse() const {
    bf16* to = data_.operands.Square(data_.inverse, item_) + tile_ * kTile * kPanel;
    const int lane = threadIdx.x % 32, first = half_ * 2;  // a warp's two blocks
    uint32_t x[2][4] = {};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (first + i <= tile_) {
        tiles_.square.LoadInverse(x[i], tile_, first + i, [](int) { return 1.0f; });
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      StoreEight(to + (lane / 4 + 8 * i) * kPanel + first * kTile + lane % 4 * 8,
                 GatherRow(x[0][i], x[0][2 + i], x[1][i], x[1][2 + i]));
    }
  }

  // u_0 = T beta V, or dU_0 = P^T dO.
  __device__ void StoreValues() const {
    uint32_t a[kTiles][4];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      if constexpr (kBackward) {
        if (t >= tile_) LoadLeftTransposed(a[t], tiles_.attention, tile_ * kTile, t * kTile);
      } else if (t <= tile_) {
        tiles_.square.LoadInverse(a[t], tile_, t, [&](int c) { return rows_.beta[c]; });
      }
    }
    bf16* to = data_.u + AtHead(n_.v);
    for (int first = half_ * kTileColumns; first < n_.v; first += kHalves * kTileColumns) {
      float sums[4][4] = {};
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        if (kBackward ? t >= tile_ : t <= tile_) {
          MultiplyAdd32(sums, a[t], tiles_.values, t * kTile, first);
        }
      }
      ForEachEight(sums, [&](int r, int c, const uint4& eight) {
        const int row = tile_ * kTile + r;
        if (row >= place_.rows || first + c >= n_.v) return;
        StoreEight(to + row * ValueStride() + first + c, eight);
      });
    }
  }

  __device__ void StoreW() const {
    uint32_t a[kTiles][4];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      if (t > tile_) break;
      tiles_.square.LoadInverse(a[t], tile_, t, [&](int c) { return rows_.read_by[c]; });
    }
    const int padded = PaddedWidth(n_.k);
    bf16* to = Operand(data_.operands.w) + tile_ * kTile * padded;
    // Where values left off, for equal shares of the halves.
    const int half = (half_ + TileWidth(n_.v) / kTileColumns) % kHalves;
    for (int first = half * kTileColumns; first < padded; first += kHalves * kTileColumns) {
      float sums[4][4] = {};
#pragma unroll
      for (int t = kTiles - 1; t >= 0; --t) {
        if (t > tile_) continue;
        if (kChannels && t < tile_) ScaleColumns(sums, t, first);
        MultiplyAdd32(sums, a[t], tiles_.k_from, t * kTile, first);
      }
      ForEachEight(sums, [&](int r, int c, const uint4& eight) {
        if (first + c < padded) StoreEight(to + r * padded + first + c, eight);
      });
    }
  }
  // Times exp(G') of tile t.
  __device__ void ScaleColumns(float (&sums)[4][4], int t, int first) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 factor = channels_.Whole(t, first + 8 * i + threadIdx.x % 4 * 2);
      sums[i][0] *= factor.x, sums[i][1] *= factor.y;
      sums[i][2] *= factor.x, sums[i][3] *= factor.y;
    }
  }

  const DeltaPreparation<bf16>& data_;
  const ScanShape& n_;
  DeltaRows<kChannels>& rows_;
  const DeltaTiles tiles_;
  ChannelTiles channels_;
  const int64_t item_;
  const int head_;
  const ChunkPlace place_;
  // What a tile costs grows with its number: the two warps of a scheduler share evenly.
  const int warp_, half_, tile_;
};

template <bool kChannels, bool kBackward>
__global__ void __launch_bounds__(kPanelThreads, 3)
    PrepareDeltaTiles(const __grid_constant__ DeltaPreparation<bf16> data) {
  __shared__ DeltaRows<kChannels> rows;
  DeltaChunkTiles<kChannels, kBackward>(data, rows).Run();
}

template <bool kBackward>
void LaunchPrepareDeltaTiles(const Stream& stream, const DeltaPreparation<bf16>& data,
                             int64_t chunks) {
  const bool channels = data.in.g_NGK != nullptr;
  const int shared = DeltaLayout(data.in.shape, channels).bytes;
  const auto kernel =
      channels ? PrepareDeltaTiles<true, kBackward> : PrepareDeltaTiles<false, kBackward>;
  AllowShared(kernel, shared);
  const dim3 grid(data.in.shape.heads, static_cast<unsigned>(chunks));
  kernel<<<grid, kPanelThreads, shared, Handle(stream)>>>(data);
  CheckLaunch("scan_delta prepare");
}

}  // namespace lt2::cuda
