#include "kernels/cuda/column_pass.cuh"
#include "kernels/cuda/short_conv_taps.cuh"
#include "kernels/short_conv.h"

namespace lt2::cuda {
namespace {

// A thread takes 4 channels of a band of tokens and walks down it, the rows of the taps in
// registers.
constexpr int kThreads = 128;
constexpr int kAtOnce = 4;  // tokens read at a time
constexpr int kPiece = 4;

struct Band {
  int64_t begin, end;
  __device__ explicit Band(int64_t tokens) {
    const int64_t each = (tokens + gridDim.y - 1) / gridDim.y;
    begin = blockIdx.y * each, end = min(tokens, begin + each);
  }
};

template <class T, int W, int n>
__global__ void __launch_bounds__(kThreads) Forward(ConvInput<T> in, T* y_NC) {
  const int64_t channel = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * n;
  const Band band(in.tokens);
  if (channel >= in.channels || band.begin >= band.end) return;
  ConvWindow<W, n> window(in, channel);
  window.Begin(in, band.begin, in.positions_N[band.begin]);
  for (int64_t first = band.begin; first < band.end; first += kAtOnce) {
    Piece<n> row[kAtOnce];
    int position[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int64_t token = min(first + j, band.end - 1);
      row[j] = Load<n>(in.x_NC + token * in.channels + channel);
      position[j] = in.positions_N[token];
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int64_t token = first + j;
      if (token >= band.end) break;
      if (position[j] == 0) window.Begin(in, token, 0);
      window.Next(row[j]);
      Piece<n> u = window.PreActivation();
#pragma unroll
      for (int i = 0; i < n; ++i) u[i] = in.Activated(u[i]);
      Store<n>(y_NC + token * in.channels + channel, u);
    }
  }
}

template <class T>
struct Gradients {
  const T* dy_NC;
  T* dx_NC;  // may be null
  bool accumulate;
  float* partial;  // [bands, W + 1, C]: of the taps, then of the bias
};

template <class T, int W, int n>
__global__ void __launch_bounds__(kThreads) Backward(ConvInput<T> in, Gradients<T> to) {
  const int64_t channel = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * n;
  const Band band(in.tokens);
  if (channel >= in.channels) return;
  Piece<n> sums[W + 1] = {};
  if (band.begin < band.end) {
    ConvWindow<W, n> window(in, channel);
    window.Begin(in, band.begin, in.positions_N[band.begin]);
    Piece<n> du[W] = {};  // of the last W tokens, and their positions
    int at[W] = {};
    // The W - 1 tokens after the band that read its rows are computed here again.
    const int64_t last = band.end + W - 1;
    for (int64_t first = band.begin; first < last; first += kAtOnce) {
      Piece<n> row[kAtOnce], dy[kAtOnce];
      int position[kAtOnce];
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int64_t token = min(first + j, in.tokens - 1);
        row[j] = Load<n>(in.x_NC + token * in.channels + channel);
        dy[j] = Load<n>(to.dy_NC + token * in.channels + channel);
        position[j] = in.positions_N[token];
      }
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const int64_t token = first + j;
        if (token >= last) break;
#pragma unroll
        for (int k = 0; k < W - 1; ++k) du[k] = du[k + 1], at[k] = at[k + 1];
        if (token < in.tokens) {
          if (position[j] == 0) window.Begin(in, token, 0);
          window.Next(row[j]);
          const Piece<n> u = window.PreActivation();
#pragma unroll
          for (int i = 0; i < n; ++i) du[W - 1][i] = dy[j][i] * in.Slope(u[i]);
          at[W - 1] = position[j];
        } else {
          at[W - 1] = 0;  // reads nothing before it
        }
        if (token < band.end) {
#pragma unroll
          for (int i = 0; i < n; ++i) {
#pragma unroll
            for (int t = 0; t < W; ++t) sums[t][i] += du[W - 1][i] * window.rows[t][i];
            sums[W][i] += du[W - 1][i];
          }
        }
        // The token k after this one reads it by tap W - 1 - k, if the document goes on.
        const int64_t complete = token - (W - 1);
        if (complete < band.begin || to.dx_NC == nullptr) continue;
        Piece<n> dx = {};
#pragma unroll
        for (int k = 0; k < W; ++k) {
          if (at[k] < k) continue;
#pragma unroll
          for (int i = 0; i < n; ++i) dx[i] += window.w[W - 1 - k][i] * du[k][i];
        }
        StoreOrAdd<n>(to.dx_NC + complete * in.channels + channel, dx, to.accumulate);
      }
    }
  }
#pragma unroll
  for (int t = 0; t <= W; ++t) {
    Store<n>(to.partial + (int64_t{blockIdx.y} * (W + 1) + t) * in.channels + channel, sums[t]);
  }
}

// Filters of other widths: an element at a time.
template <class T>
struct AnyWidth {
  ConvInput<T> in;
  const T* dy_NC;

  __device__ float RowAt(int64_t token, int back, int64_t channel) const {
    return in.template Row<1>(token, in.positions_N[token], back, channel)[0];
  }
  __device__ float PreActivation(int64_t token, int64_t channel) const {
    float u = in.template Bias<1>(channel)[0];
    for (int t = 0; t < in.width; ++t) {
      const int back = static_cast<int>(in.width) - 1 - t;
      u += in.w_CW[channel * in.width + t] * RowAt(token, back, channel);
    }
    return u;
  }
  __device__ float Du(int64_t token, int64_t channel) const {
    return Get(dy_NC, token * in.channels + channel) * in.Slope(PreActivation(token, channel));
  }
  __device__ float Dx(int64_t token, int64_t channel) const {
    float dx = 0;
    for (int k = 0; k < in.width && token + k < in.tokens; ++k) {
      if (in.positions_N[token + k] < k) break;
      dx += in.w_CW[channel * in.width + in.width - 1 - k] * Du(token + k, channel);
    }
    return dx;
  }
};

// The gradient of one tap, or of the bias where tap = width.
template <class T>
struct TapGradient {
  static constexpr int kSums = 1;
  AnyWidth<T> conv;
  int tap;

  using Columns = int64_t;
  using Row = float;
  __device__ Columns AtColumn(int64_t channel) const { return channel; }
  __device__ Row Load(int64_t token, int64_t, const Columns& channel) const {
    const int width = static_cast<int>(conv.in.width);
    const float row = tap == width ? 1 : conv.RowAt(token, width - 1 - tap, channel);
    return row == 0 ? 0 : row * conv.Du(token, channel);
  }
  __device__ void Use(int64_t, int64_t, const Columns&, const Row& product, Piece<1>* sums) const {
    sums[0][0] += product;
  }
};

template <class T>
void ForwardAnyWidth(const Stream& stream, const AnyWidth<T>& conv, T* y_NC) {
  const int64_t channels = conv.in.channels;
  ForEach(stream, "short_conv", conv.in.tokens * channels, [=] __device__(int64_t i) {
    Put(y_NC, i, conv.in.Activated(conv.PreActivation(i / channels, i % channels)));
  });
}

template <class T>
void InputGradientAnyWidth(const Stream& stream, const AnyWidth<T>& conv, T* dx_NC,
                           bool accumulate) {
  const int64_t channels = conv.in.channels;
  ForEach(stream, "short_conv backward", conv.in.tokens * channels, [=] __device__(int64_t i) {
    PutOrAdd(dx_NC, i, conv.Dx(i / channels, i % channels), accumulate);
  });
}

dim3 BandGrid(int64_t tokens, int64_t channels, int n, int64_t blocks, int64_t least_tokens) {
  const int64_t across = Blocks(channels, int64_t{kThreads} * n);
  const int64_t bands =
      std::clamp<int64_t>(blocks / across, 1, std::clamp<int64_t>(tokens / least_tokens, 1, 65535));
  return dim3(static_cast<unsigned>(across), static_cast<unsigned>(bands));
}

// fn.operator()<W>() for the usual widths; false for others.
template <class Fn>
bool DispatchWidth(int64_t width, const Fn& fn) {
  switch (width) {
    case 2:
      return fn.template operator()<2>(), true;
    case 3:
      return fn.template operator()<3>(), true;
    case 4:
      return fn.template operator()<4>(), true;
    default:
      return false;
  }
}

template <class T>
void RunForward(const Stream& stream, const ShortConvForwardArgs& a) {
  const ConvInput<T> in = ConvInput<T>::Of(a);
  if (in.tokens == 0) return;
  const bool usual = DispatchWidth(in.width, [&]<int W>() {
    DispatchPieces<T, kPiece>(in.channels, {a.x_NC, a.bias_C, a.tail_DPC, a.y_NC}, [&]<int n>() {
      const dim3 grid = BandGrid(in.tokens, in.channels, n, 2112, 16);
      Forward<T, W, n><<<grid, kThreads, 0, Handle(stream)>>>(in, Data<T>(a.y_NC));
    });
    CheckLaunch("short_conv");
  });
  if (!usual) ForwardAnyWidth(stream, AnyWidth<T>{in, nullptr}, Data<T>(a.y_NC));
}

template <class T>
void BackwardAnyWidth(const Stream& stream, const ShortConvBackwardArgs& a,
                      const ConvInput<T>& in) {
  const AnyWidth<T> conv{in, Data<T>(a.dy_NC)};
  const int width = static_cast<int>(in.width);
  if (a.dx_NC.defined()) {
    InputGradientAnyWidth(stream, conv, Data<T>(a.dx_NC), a.accumulate_dx);
  }
  for (int tap = 0; tap <= width; ++tap) {
    const Tensor& gradient = tap < width ? a.dw_CW : a.dbias_C;
    if (!gradient.defined()) continue;
    const TapGradient<T> pass{conv, tap};
    ColumnPass<1>(stream, "short_conv backward", in.tokens, in.channels, pass)
        .Finish(stream, "short_conv backward", 0, Data<float>(gradient) + (tap < width ? tap : 0),
                /*add=*/true, tap < width ? width : 1);
  }
}

template <class T>
void RunBackward(const Stream& stream, const ShortConvBackwardArgs& a) {
  const ConvInput<T> in = ConvInput<T>::Of(a);
  if (in.tokens == 0) return;
  const char* name = "short_conv backward";
  const bool usual = DispatchWidth(in.width, [&]<int W>() {
    PartialSums sums{.sums = W + 1, .columns = in.channels};
    DispatchPieces<T, kPiece>(
        in.channels, {a.x_NC, a.bias_C, a.tail_DPC, a.dy_NC, a.dx_NC}, [&]<int n>() {
          const dim3 grid = BandGrid(in.tokens, in.channels, n, 528, 32);
          sums.bands = grid.y;
          float* partial = ScratchFor<float>(stream, sums.bands * (W + 1) * in.channels);
          sums.data = partial;
          const Gradients<T> to{Data<T>(a.dy_NC), DataOrNull<T>(a.dx_NC), a.accumulate_dx, partial};
          Backward<T, W, n><<<grid, kThreads, 0, Handle(stream)>>>(in, to);
        });
    CheckLaunch(name);
    float *dw = DataOrNull<float>(a.dw_CW), *dbias = DataOrNull<float>(a.dbias_C);
    for (int t = 0; t < W && dw != nullptr; ++t) {
      sums.Finish(stream, name, t, dw + t, /*add=*/true, /*step=*/W);
    }
    sums.Finish(stream, name, W, dbias);
  });
  if (!usual) BackwardAnyWidth(stream, a, in);
}

}  // namespace

void ShortConvForward(Stream& stream, const ShortConvForwardArgs& a) {
  DispatchType("short_conv", a.x_NC.dtype(), [&]<class T>() { RunForward<T>(stream, a); });
}

void ShortConvBackward(Stream& stream, const ShortConvBackwardArgs& a) {
  DispatchType("short_conv", a.x_NC.dtype(), [&]<class T>() { RunBackward<T>(stream, a); });
}

}  // namespace lt2::cuda
