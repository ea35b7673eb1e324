// Short convolutions of up to four taps, several in one launch, with SiLU and, where asked, the L2
// norm of each head behind them.
//
// A thread takes a piece of channels of a band of tokens and walks down it. Rows are read four
// tokens ahead, once, and stay in registers as long as a tap reads them; the gradients of rows
// gather in registers likewise until the last of their taps has been seen. Both are rings: what
// belongs to the j-th token of four is in slot j.
#pragma once

#include "kernels/cuda/column_pass.cuh"
#include "kernels/cuda/conv_parts.cuh"

namespace lt2::cuda {

// A thread's pieces of the next rows, in its own slots of shared memory: they wait there without
// registers. A slot is filled again when what was in it has been used.
template <class T, int n>
struct ConvAhead {
  using Row = Packed<T, n>;
  Row (*slots)[kConvMostThreads];  // [kConvRing]
  const T* at;
  int64_t step;

  __device__ ConvAhead(Row (*slots)[kConvMostThreads], const T* x_NC, int64_t channels,
                       int64_t channel, int token)
      : slots(slots), at(x_NC + token * channels + channel), step(channels) {}
  // The next row, and that one again where there are no `more`.
  __device__ void Fetch(int slot, bool more) {
    Row* to = slots[slot] + threadIdx.x;
    if constexpr (sizeof(Row) == 16) {
      CopyAsync16(SharedAddress(to), at, true);
    } else {
      *to = LoadPacked<n>(at);
    }
    if (more) at += step;
  }
  __device__ Row Get(int slot) const { return slots[slot][threadIdx.x]; }
};
// What has been fetched since the last call is one token's.
__device__ inline void EndOfTokenFetch() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// The oldest token of the ring has been fetched.
__device__ inline void WaitForToken() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kConvRing - 1) : "memory");
}

// Sums over heads for tokens one after the other. Four neighbouring threads add up with shuffles,
// and then their head's fours. All threads of the block must call.
struct ConvHeadSums {
  float (*of_four)[kConvMostThreads / 2];  // two buffers: tokens take turns

  template <int n>
  __device__ float2 Sum(const ConvPlace<n>& place, int turn, float a, float b) const {
    const bool second = threadIdx.x & 2;
    float sum = second ? b : a;
    sum += __shfl_xor_sync(~0u, second ? a : b, 2);
    sum += __shfl_xor_sync(~0u, sum, 1);
    if (threadIdx.x % 2 == 0) of_four[turn % 2][threadIdx.x / 2] = sum;
    __syncthreads();
    const int fours = place.lanes / 4;
    const float2* from = reinterpret_cast<const float2*>(of_four[turn % 2]) + place.head * fours;
    float2 total = from[0];
#pragma unroll
    for (int four = 1; four < fours; ++four) {
      total.x += from[four].x;
      total.y += from[four].y;
    }
    return total;
  }
};

// Taps, and rows by the slot of their token.
template <bool kBias, int W, int n>
struct ConvRing {
  static_assert(W <= kConvRing);
  Piece<n> w[W], bias = {}, rows[kConvRing] = {};
  int64_t channel;

  template <class T>
  __device__ ConvRing(const ConvInput<T>& in, int64_t channel) : channel(channel) {
    if constexpr (kBias) bias = in.template Bias<n>(channel);
#pragma unroll
    for (int t = 0; t < W; ++t) {
#pragma unroll
      for (int i = 0; i < n; ++i) w[t][i] = in.w_CW[(channel + i) * W + t];
    }
  }
  static __device__ constexpr int Slot(int j, int back) {
    return (j + kConvRing - back) % kConvRing;
  }
  // The rows that the token in slot j, at `position` of its document, reads beside its own.
  template <class T>
  __device__ void Begin(const ConvInput<T>& in, int j, int token, int position) {
#pragma unroll
    for (int back = 1; back < W; ++back) {
      rows[Slot(j, back)] = in.template Row<n>(token, position, back, channel);
    }
  }
  // The token in slot j is its document's first. Without `kTails` nothing is before it.
  template <bool kTails, class T>
  __device__ void BeginDocument(const ConvInput<T>& in, int j, int token) {
    if constexpr (kTails) {
      Begin(in, j, token, 0);
    } else {
#pragma unroll
      for (int back = 1; back < W; ++back) rows[Slot(j, back)] = {};
    }
  }
  __device__ Piece<n> PreActivation(int j) const {
    Piece<n> u;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      u[i] = w[0][i] * rows[Slot(j, W - 1)][i];
      if constexpr (kBias) u[i] += bias[i];
    }
#pragma unroll
    for (int t = 1; t < W; ++t) {
#pragma unroll
      for (int i = 0; i < n; ++i) u[i] += w[t][i] * rows[Slot(j, W - 1 - t)][i];
    }
    return u;
  }
};

// kNorms: there is SiLU, heads are normed, and there are neither biases nor tails.
template <bool kNorms, int W, int n, class T>
__global__ void __launch_bounds__(kConvMostThreads, 4)
    ConvForward(const __grid_constant__ ConvParts<T> parts) {
  __shared__ Packed<T, n> x_slots[kConvRing][kConvMostThreads];
  __shared__ __align__(8) float of_four[2][kConvMostThreads / 2];
  const ConvHeadSums heads{of_four};
  const ConvPart<T>& part = parts.OfBlock();
  const ConvInput<T>& in = part.in;
  const ConvPlace<n> place(part);
  const ConvBand band(in.tokens);
  if (band.begin >= band.end) return;
  const bool silu = kNorms || in.silu, normed = kNorms && part.head_dim > 0;
  ConvRing<!kNorms, W, n> ring(in, place.channel);
  ring.Begin(in, 0, band.begin, in.positions_N[band.begin]);
  ConvAhead<T, n> x(x_slots, in.x_NC, in.channels, place.channel, band.begin);
  T* y_C = part.y_NC + band.begin * in.channels + place.channel;
  int position[kConvRing];
#pragma unroll
  for (int j = 0; j < kConvRing; ++j) {
    x.Fetch(j, band.begin + j + 1 < band.end);
    EndOfTokenFetch();
    position[j] = in.positions_N[min(band.begin + j, band.end - 1)];
  }
  for (int first = band.begin; first < band.end; first += kConvRing) {
#pragma unroll
    for (int j = 0; j < kConvRing; ++j) {
      const int token = first + j, ahead = token + kConvRing;
      WaitForToken();
      ring.rows[j] = Unpacked(x.Get(j));
      if (position[j] == 0) [[unlikely]]
        ring.template BeginDocument<!kNorms>(in, j, token);
      x.Fetch(j, ahead + 1 < band.end);
      EndOfTokenFetch();
      position[j] = in.positions_N[min(ahead, band.end - 1)];
      Piece<n> y = ring.PreActivation(j);
      if (silu) {
#pragma unroll
        for (int i = 0; i < n; ++i) y[i] *= SigmoidOf<T>(y[i]);
      }
      if (normed) {
        float squares = 0;
#pragma unroll
        for (int i = 0; i < n; ++i) squares += y[i] * y[i];
        const float rho = rsqrtf(heads.Sum(place, j, squares, 0).x + parts.eps);
#pragma unroll
        for (int i = 0; i < n; ++i) y[i] *= rho;
      }
      if (token < band.end && place.active) Store<n>(y_C, y);
      y_C += in.channels;
    }
  }
}

template <bool kNorms, int W, int n, class T>
__global__ void __launch_bounds__(kConvMostThreads, 3)
    ConvBackward(const __grid_constant__ ConvParts<T> parts) {
  __shared__ Packed<T, n> x_slots[kConvRing][kConvMostThreads];
  __shared__ Packed<T, n> dy_slots[kConvRing][kConvMostThreads];
  __shared__ __align__(8) float of_four[2][kConvMostThreads / 2];
  const ConvHeadSums heads{of_four};
  const ConvPart<T>& part = parts.OfBlock();
  const ConvInput<T>& in = part.in;
  const ConvPlace<n> place(part);
  const ConvBand band(in.tokens);
  const bool silu = kNorms || in.silu, normed = kNorms && part.head_dim > 0;
  Piece<n> sums[kNorms ? W : W + 1] = {};
  if (band.begin < band.end) {
    const int tokens = static_cast<int>(in.tokens);
    ConvRing<!kNorms, W, n> ring(in, place.channel);
    ring.Begin(in, 0, band.begin, in.positions_N[band.begin]);
    ConvAhead<T, n> x(x_slots, in.x_NC, in.channels, place.channel, band.begin);
    ConvAhead<T, n> g(dy_slots, part.dy_NC, in.channels, place.channel, band.begin);
    T* dx_C = part.dx_NC + (band.begin - (W - 1)) * in.channels + place.channel;
    const bool wanted = place.active && part.dx_NC != nullptr;
    Piece<n> dx[kConvRing] = {};
    int position[kConvRing];
#pragma unroll
    for (int j = 0; j < kConvRing; ++j) {
      x.Fetch(j, band.begin + j + 1 < tokens);
      g.Fetch(j, band.begin + j + 1 < tokens);
      EndOfTokenFetch();
      position[j] = in.positions_N[min(band.begin + j, tokens - 1)];
    }
    // The W - 1 tokens after the band that read its rows are computed here again.
    const int last = band.end + W - 1;
    for (int first = band.begin; first < last; first += kConvRing) {
#pragma unroll
      for (int j = 0; j < kConvRing; ++j) {
        const int token = first + j, ahead = token + kConvRing, complete = token - (W - 1);
        const int at = token < tokens ? position[j] : 0;  // what is not there reads nothing
        WaitForToken();
        ring.rows[j] = Unpacked(x.Get(j));
        const Packed<T, n> dy = g.Get(j);
        if (at == 0) [[unlikely]] {
          ring.template BeginDocument<!kNorms>(in, j, min(token, tokens - 1));
        }
        const Piece<n> u = ring.PreActivation(j);
        Piece<n> y, du;
#pragma unroll
        for (int i = 0; i < n; ++i) {
          const float s = silu ? SigmoidOf<T>(u[i]) : 1;
          y[i] = u[i] * s;
          du[i] = s + (y[i] - y[i] * s);
        }
        if (normed) {  // from the gradient of y ρ to that of y: ρ (g - y ρ² (g · y))
          float squares = 0, along = 0;
#pragma unroll
          for (int i = 0; i < n; ++i) {
            squares += y[i] * y[i];
            along += dy[i] * y[i];
          }
          const float2 sum = heads.Sum(place, j, squares, along);
          const float rho = rsqrtf(sum.x + parts.eps), pull = sum.y * rho * rho;
#pragma unroll
          for (int i = 0; i < n; ++i) du[i] *= rho * (dy[i] - pull * y[i]);
        } else {
#pragma unroll
          for (int i = 0; i < n; ++i) du[i] *= dy[i];
        }
        x.Fetch(j, ahead + 1 < tokens);
        g.Fetch(j, ahead + 1 < tokens);
        EndOfTokenFetch();
        position[j] = in.positions_N[min(ahead, tokens - 1)];
        if (token < band.end) {
#pragma unroll
          for (int i = 0; i < n; ++i) {
#pragma unroll
            for (int t = 0; t < W; ++t) {
              sums[t][i] += du[i] * ring.rows[ring.Slot(j, W - 1 - t)][i];
            }
            if constexpr (!kNorms) sums[W][i] += du[i];
          }
        }
#pragma unroll
        for (int i = 0; i < n; ++i) dx[j][i] = ring.w[W - 1][i] * du[i];
#pragma unroll
        for (int back = 1; back < W; ++back) {
          if (at < back) break;  // the document begins after that row
#pragma unroll
          for (int i = 0; i < n; ++i) {
            dx[ring.Slot(j, back)][i] += ring.w[W - 1 - back][i] * du[i];
          }
        }
        if (wanted && complete >= band.begin && complete < band.end) {
          StoreOrAdd<n>(dx_C, dx[ring.Slot(j, W - 1)], part.accumulate);
        }
        dx_C += in.channels;
      }
    }
  }
  if (!place.active) return;
  constexpr int kSums = kNorms ? W : W + 1;
  const int64_t to = part.first_column + place.channel;
#pragma unroll
  for (int t = 0; t < kSums; ++t) {
    Store<n>(parts.partial + (int64_t{blockIdx.y} * kSums + t) * parts.columns + to, sums[t]);
  }
}

template <bool kNorms, int W, int n, class T>
void RunConvForward(const Stream& stream, const char* name, const ConvParts<T>& parts) {
  const dim3 grid = ConvGrid(parts, 16, 16);
  ConvForward<kNorms, W, n><<<grid, parts.threads, 0, Handle(stream)>>>(parts);
  CheckLaunch(name);
}

// Gives `parts` their workspace.
template <bool kNorms, int W, int n, class T>
void RunConvBackward(const Stream& stream, const char* name, ConvParts<T> parts) {
  const dim3 grid = ConvGrid(parts, 12, 32);
  const int64_t stride = (kNorms ? W : W + 1) * parts.columns;
  parts.partial = ScratchFor<float>(stream, grid.y * stride);
  ConvBackward<kNorms, W, n><<<grid, parts.threads, 0, Handle(stream)>>>(parts);
  CheckLaunch(name);
  FinishSums(stream, name, grid.y, stride, stride, parts.partial, ConvSumTarget<T>{parts, W});
}

}  // namespace lt2::cuda
