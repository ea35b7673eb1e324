// What PrepareDeltaTiles (scan_delta_tiles.cuh) takes, and what it has in shared memory.
#pragma once

#include <algorithm>
#include <initializer_list>

#include "kernels/cuda/channel_tiles.cuh"
#include "kernels/cuda/lower_inverse.cuh"
#include "kernels/cuda/scan_delta_inputs.cuh"

namespace lt2::cuda {

// Whether PrepareDeltaTiles can have these and what else it reads or writes (may be null);
// otherwise it is PrepareDelta's work.
template <class T>
bool FitsDeltaTiles(const DeltaInputs<T>& in, std::initializer_list<const void*> others) {
  constexpr int kMostValues = 256;
  const ScanShape& n = in.shape;
  const auto aligned = [](const void* x) { return reinterpret_cast<uintptr_t>(x) % 16 == 0; };
  return std::is_same_v<T, bf16> && n.k <= ChannelTiles::kMostChannels && n.v <= kMostValues &&
         n.k % 8 == 0 && n.v % 8 == 0 && aligned(in.q_NHK) && aligned(in.k_NHK) &&
         aligned(in.v_NGV) && aligned(in.g_NGK) &&
         std::all_of(others.begin(), others.end(), aligned);
}

// Places in shared memory, in bytes. With channel decays values come where q was, and the
// backward's P where k was.
struct DeltaLayout {
  int key_stride, value_stride;  // of tiles
  int square, q, k, k_from, values, attention, factors, bytes = 0;

  __host__ __device__ DeltaLayout(const ScanShape& n, bool channels)
      : key_stride(TileStride(n.k < kPanel ? kPanel : n.k)), value_stride(TileStride(n.v)) {
    const auto take = [&](int size) { return (bytes += size) - size; };
    const auto tile = [&](int stride) {
      return take(kPanel * stride * static_cast<int>(sizeof(bf16)));
    };
    const auto floats = [&](int size) { return take(size * static_cast<int>(sizeof(float))); };
    square = floats(LowerSquare::kSize);
    k = tile(key_stride);
    q = tile(channels && key_stride < value_stride ? value_stride : key_stride);
    values = channels ? q : tile(value_stride);
    k_from = channels ? tile(key_stride) : k;
    attention = channels ? k : q;
    factors = channels ? floats(ChannelTiles::kFactors) : 0;
  }
};
struct DeltaTiles {
  LowerSquare square;
  Tile q, k, k_from, values, attention;
  float* factors;  // of channel_tiles.cuh

  __device__ explicit DeltaTiles(const DeltaLayout& places)
      : square{At<float>(places.square)},
        q{At<bf16>(places.q), places.key_stride},
        k{At<bf16>(places.k), places.key_stride},
        k_from{At<bf16>(places.k_from), places.key_stride},
        values{At<bf16>(places.values), places.value_stride},
        attention{At<bf16>(places.attention), places.key_stride},
        factors(At<float>(places.factors)) {}

  template <class T>
  __device__ static T* At(int place) {
    return reinterpret_cast<T*>(DynamicShared() + place);
  }
};

// What is small of a chunk, in shared memory: asked for by Fetch, the first of the block's copies,
// and there after Finish, before which the thread has closed one more group of copies.
template <bool kChannels>
struct DeltaRows {
  RowWeights decays;
  // G / ln 2 is their sum, so that differences stay exact.
  alignas(8) float high[kPanel], low[kPanel];
  float g[kPanel], beta[kPanel], read_by[kPanel];  // read_by: -beta exp(G)

  // Work of the first warp, as is Finish.
  __device__ void Fetch(const float* g_of, const float* beta_of, int64_t stride, int rows) {
    if (threadIdx.x >= 32) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int r = 2 * threadIdx.x + i;
      const bool there = r < rows;
      const int64_t from = there ? r * stride : 0;
      const bool decays_too = there && g_of != nullptr;
      CopyAsync4(SharedAddress(g + r), decays_too ? g_of + from : beta_of, decays_too);
      CopyAsync4(SharedAddress(beta + r), beta_of + from, there);
    }
  }
  __device__ void Finish(int rows) {
    constexpr double kLog2E = 1.4426950408889634;
    if (threadIdx.x >= 32) return;
    WaitForCopies<1>();
    decays.Load<bf16>(g, 1, 0, rows);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int r = 2 * threadIdx.x + i;  // the lane's also there
      const double of = kLog2E * decays.of_row[r];
      high[r] = static_cast<float>(of);
      low[r] = static_cast<float>(of - double{high[r]});
      read_by[r] = -beta[r] * decays.from_start[r];
    }
  }
};
// Channels have their decays elsewhere.
template <>
struct DeltaRows<true> {
  float beta[kPanel], read_by[kPanel];

  __device__ void Fetch(const float*, const float* beta_of, int64_t stride, int rows) {
    const int r = threadIdx.x;
    if (r >= kPanel) return;
    CopyAsync4(SharedAddress(beta + r), r < rows ? beta_of + r * stride : beta_of, r < rows);
  }
  __device__ void Finish(int) {
    if (threadIdx.x >= kPanel) return;
    WaitForCopies<1>();
    read_by[threadIdx.x] = -beta[threadIdx.x];
  }
};

}  // namespace lt2::cuda
