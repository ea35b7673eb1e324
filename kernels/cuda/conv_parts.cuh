// How several short convolutions share one launch: which channels of which of them a block and a
// thread take, and where sums of taps go.
#pragma once

#include <algorithm>
#include <array>
#include <numeric>

#include "kernels/cuda/short_conv_taps.cuh"

namespace lt2::cuda {

inline constexpr int kConvMostThreads = 128;  // of a block
inline constexpr int kConvRing = 4;           // taps at most, and tokens read ahead
inline constexpr int kConvParts = 3;

template <class T>
struct ConvPart {
  ConvInput<T> in = {};
  int head_dim = 0;         // channels that are normed together; 0: none are
  int lanes = 0;            // threads of a head
  unsigned first_tile = 0;  // in gridDim.x
  T* y_NC = nullptr;
  // The backward's:
  const T* dy_NC = nullptr;
  T* dx_NC = nullptr;  // may be null
  bool accumulate = false;
  float *dw_CW = nullptr, *dbias_C = nullptr;  // may be null
  int64_t first_column = 0;                    // in `partial`
};

// Heads that are normed must be of `n · 4` channels or a multiple of that.
template <class T>
struct ConvParts {
  ConvPart<T> part[kConvParts] = {};
  int count = 0, threads = 0;
  unsigned tiles = 0;
  float eps = 0;  // of the norms
  float* partial =
      nullptr;  // the backward's [bands, W, columns], [bands, W + 1, columns] with bias
  int64_t columns = 0;

  // Threads take pieces of n elements; whole heads go to a block of whole warps.
  ConvParts(const std::array<ConvPart<T>, kConvParts>& of, int of_count, int n, double norm_eps = 0)
      : count(of_count), threads(ThreadsFor(of, n)), eps(static_cast<float>(norm_eps)) {
    for (int p = 0; p < count; ++p) {
      part[p] = of[p];
      const int64_t channels = of[p].in.channels;
      part[p].lanes = of[p].head_dim == 0 ? threads : of[p].head_dim / n;
      part[p].first_tile = tiles;
      part[p].first_column = columns;
      tiles += Blocks(channels, int64_t{threads} / part[p].lanes * part[p].lanes * n);
      columns += channels;
    }
  }
  static int ThreadsFor(const std::array<ConvPart<T>, kConvParts>& of, int n) {
    int64_t threads = 32;
    for (const ConvPart<T>& part : of) {
      if (part.head_dim > 0) threads = std::lcm(threads, int64_t{part.head_dim / n});
    }
    while (2 * threads <= kConvMostThreads) threads *= 2;
    return static_cast<int>(threads);
  }
  __device__ const ConvPart<T>& OfBlock() const {
    int p = 0;
    while (p + 1 < count && blockIdx.x >= part[p + 1].first_tile) ++p;
    return part[p];
  }
};

struct ConvBand {
  int begin, end;
  __device__ explicit ConvBand(int64_t tokens) {
    const int64_t each = (tokens + gridDim.y - 1) / gridDim.y;
    begin = static_cast<int>(min(tokens, blockIdx.y * each));
    end = static_cast<int>(min(tokens, begin + each));
  }
};

// A thread's channels. Idle threads do what another does and keep it to themselves.
template <int n>
struct ConvPlace {
  int64_t channel;
  int head, lanes;  // which of the block's heads, and its threads
  bool active;

  template <class T>
  __device__ explicit ConvPlace(const ConvPart<T>& part)
      : head(threadIdx.x / part.lanes), lanes(part.lanes) {
    const int64_t tile = blockIdx.x - part.first_tile;
    channel = (tile * blockDim.x + threadIdx.x) * n;
    active = channel < part.in.channels;
    if (!active) channel = 0;
  }
};

// Tiles by bands: one wave, where every processor has `warps` warps.
template <class T>
dim3 ConvGrid(const ConvParts<T>& parts, int warps, int64_t least_tokens) {
  const int64_t blocks = int64_t{132} * (32 * warps / parts.threads);
  const int64_t bands =
      std::clamp<int64_t>(blocks / parts.tiles, 1,
                          std::clamp<int64_t>(parts.part[0].in.tokens / least_tokens, 1, 65535));
  return dim3(parts.tiles, static_cast<unsigned>(bands));
}

// Where sum t of a column goes: to tap t of its channel, or to the bias.
template <class T>
struct ConvSumTarget {
  ConvParts<T> parts;
  int width;

  __device__ void operator()(int64_t i, float sum) const {
    const int tap = static_cast<int>(i / parts.columns);
    const int64_t column = i - tap * parts.columns;
    int p = 0;
    while (p + 1 < parts.count && column >= parts.part[p + 1].first_column) ++p;
    const ConvPart<T>& part = parts.part[p];
    const int64_t channel = column - part.first_column;
    if (tap == width) {
      if (part.dbias_C != nullptr) part.dbias_C[channel] += sum;
    } else if (part.dw_CW != nullptr) {
      part.dw_CW[channel * width + tap] += sum;
    }
  }
};

}  // namespace lt2::cuda
