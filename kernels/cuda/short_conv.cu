#include "kernels/cuda/conv_bands.cuh"
#include "kernels/short_conv.h"

namespace lt2::cuda {
namespace {

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
    DispatchPieces<T>(in.channels, {a.x_NC, a.bias_C, a.tail_DPC, a.y_NC}, [&]<int n>() {
      const ConvPart<T> part{.in = in, .y_NC = Data<T>(a.y_NC)};
      RunConvForward</*kNorms=*/false, W, n>(stream, "short_conv", ConvParts<T>({part}, 1, n));
    });
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
    const ConvPart<T> part{.in = in,
                           .dy_NC = Data<T>(a.dy_NC),
                           .dx_NC = DataOrNull<T>(a.dx_NC),
                           .accumulate = a.accumulate_dx,
                           .dw_CW = DataOrNull<float>(a.dw_CW),
                           .dbias_C = DataOrNull<float>(a.dbias_C)};
    const auto tensors = {a.x_NC, a.bias_C, a.tail_DPC, a.dy_NC, a.dx_NC};
    DispatchPieces<T>(in.channels, tensors, [&]<int n>() {
      RunConvBackward</*kNorms=*/false, W, n>(stream, name, ConvParts<T>({part}, 1, n));
    });
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
