#include "kernels/decay_gate.h"

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/simd.h"

namespace lt2::cpu {
namespace {

// Channels can be few, too few for a vector loop: rates and biases are repeated over the rows of a
// tile, so that a tile of tokens is one long loop.
template <class T>
struct Tile {
  Tile(const Tensor& A_log, const Tensor& dt_bias)
      : heads(A_log.size()),
        channels(dt_bias.size()),
        rows((256 + channels - 1) / channels),
        rate(rows * channels),
        bias(rate),
        zero(rate) {
    for (int64_t i = 0; i < rows * channels; ++i) {
      rate[i] = -std::exp(A_log.data<T>()[i % channels / (channels / heads)]);
      bias[i] = dt_bias.data<T>()[i % channels];
    }
  }
  int64_t heads, channels, rows;
  std::vector<T> rate, bias, zero;
};

template <class T>
void Forward(const DecayGateForwardArgs& args) {
  const Tile<T> tile(args.A_log, args.dt_bias);
  const int64_t size = args.a.size();
  const T* a = args.a.data<T>();
  T *g = args.g.data<T>(), *dt = DataOrNull<T>(args.dt);
  const T *rate = tile.rate.data(), *bias = tile.bias.data();
  ForEachBlock(size, tile.rows * tile.channels, size, [=](int64_t, int64_t begin, int64_t end) {
    T* step = (dt != nullptr ? dt : g) + begin;
#pragma omp simd
    for (int64_t i = 0; i < end - begin; ++i) step[i] = SoftPlus(a[begin + i] + bias[i]);
#pragma omp simd
    for (int64_t i = 0; i < end - begin; ++i) g[begin + i] = rate[i] * step[i];
  });
}

template <class T>
void Backward(const DecayGateBackwardArgs& args) {
  const Tile<T> tile(args.A_log, args.dt_bias);
  const int64_t channels = tile.channels, size = args.a.size(), tokens = size / channels;
  const T *a = args.a.data<T>(), *g = args.g.data<T>();
  const T *ddt = DataOrNull<T>(args.ddt), *dg = DataOrNull<T>(args.dg);
  const T *rate = tile.rate.data(), *bias = tile.bias.data();
  T* da = DataOrNull<T>(args.da);
  const bool accumulate = args.accumulate_da;
  const RowSums<T> sums(tokens, 2 * channels);  // of e, then of dg g
  ForEachBlock(tokens, sums.Block(tokens), size,
               [=, &tile](int64_t block, int64_t begin, int64_t end) {
                 thread_local std::vector<T> scratch;
                 if (scratch.size() < 2 * tile.rate.size()) scratch.resize(2 * tile.rate.size());
                 T *e = scratch.data(), *product = e + tile.rate.size();
                 T *sum_e = sums.Line(block), *sum_dgg = sum_e + channels;
                 for (int64_t first = begin; first < end; first += tile.rows) {
                   const int64_t rows = std::min(tile.rows, end - first), at = first * channels;
                   const T* ddt_tile = ddt != nullptr ? ddt + at : tile.zero.data();
                   const T* dg_tile = dg != nullptr ? dg + at : tile.zero.data();
#pragma omp simd
                   for (int64_t i = 0; i < rows * channels; ++i) {
                     const T z = a[at + i] + bias[i], s = Sigmoid(z);
                     e[i] = (ddt_tile[i] + rate[i] * dg_tile[i]) * (z > T(20) ? T(1) : s);
                     product[i] = dg_tile[i] * g[at + i];
                   }
                   Store(da == nullptr ? da : da + at, e, rows * channels, accumulate);
                   for (int64_t n = 0; n < rows; ++n) {
                     for (int64_t c = 0; c < channels; ++c) {
                       sum_e[c] += e[n * channels + c];
                       sum_dgg[c] += product[n * channels + c];
                     }
                   }
                 }
               });
  sums.AddTo(args.ddt_bias.data<T>(), 0, channels);
  sums.AddTo(args.dA_log.data<T>(), channels, tile.heads, channels / tile.heads);
}

}  // namespace

void DecayGateForward(Stream&, const DecayGateForwardArgs& args) {
  DispatchFloat(args.a.dtype(), [&]<class T>() { Forward<T>(args); });
}

void DecayGateBackward(Stream&, const DecayGateBackwardArgs& args) {
  DispatchFloat(args.a.dtype(), [&]<class T>() { Backward<T>(args); });
}

}  // namespace lt2::cpu
