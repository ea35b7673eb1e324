#include "kernels/cuda/conv_bands.cuh"
#include "kernels/qkv_conv.h"

namespace lt2::cuda {
namespace {

constexpr int kTaps = 4;

template <class T, class Args>
ConvPart<T> PartOf(const Args& a, int p) {
  return {.in = {.tokens = a.x_NC[p].dim(0),
                 .channels = a.x_NC[p].dim(1),
                 .width = kTaps,
                 .x_NC = Data<T>(a.x_NC[p]),
                 .w_CW = Data<float>(a.w_CW[p]),
                 .silu = true,
                 .positions_N = Data<int32_t>(a.documents.positions())},
          .head_dim = p < 2 ? static_cast<int>(a.head_dim) : 0};
}

// Whether one launch can do it: pieces of 16 bytes, and whole fours of them to a head.
template <class T, class Args>
bool InOneLaunch(const Args& a, const std::array<Tensor, kQkv>& read,
                 const std::array<Tensor, kQkv>& written) {
  const int64_t four = 4 * kWide<T>;
  bool fits = a.head_dim % four == 0 && std::lcm(32, a.head_dim / kWide<T>) <= kConvMostThreads;
  const auto aligned = [](const Tensor& x) {
    return !x.defined() || reinterpret_cast<uintptr_t>(x.raw()) % 16 == 0;
  };
  for (int p = 0; p < kQkv; ++p) {
    fits = fits && a.w_CW[p].dim(1) == kTaps && a.x_NC[p].dim(1) % kWide<T> == 0 &&
           aligned(a.x_NC[p]) && aligned(read[p]) && aligned(written[p]);
  }
  return fits;
}

// fn.operator()<kFours>(): known to the compiler for the usual heads of bfloat16, 96 and 128.
template <class T, class Fn>
void DispatchFours(int64_t head_dim, const Fn& fn) {
  if constexpr (std::is_same_v<T, bf16>) {
    if (head_dim == 96) return fn.template operator()<3>();
    if (head_dim == 128) return fn.template operator()<4>();
  }
  fn.template operator()<0>();
}

template <class T>
void RunForward(Stream& stream, const QkvConvForwardArgs& a) {
  if (!InOneLaunch<T>(a, a.x_NC, a.y_NC)) return QkvConvForwardInParts(stream, a);
  std::array<ConvPart<T>, kQkv> part;
  for (int p = 0; p < kQkv; ++p) {
    part[p] = PartOf<T>(a, p);
    part[p].y_NC = Data<T>(a.y_NC[p]);
  }
  DispatchFours<T>(a.head_dim, [&]<int kFours>() {
    RunConvForward</*kNorms=*/true, kFours, kTaps, kWide<T>>(
        stream, "qkv_conv", ConvParts<T>(part, kQkv, kWide<T>, a.eps));
  });
}

template <class T>
void RunBackward(Stream& stream, const QkvConvBackwardArgs& a) {
  if (!InOneLaunch<T>(a, a.dy_NC, a.dx_NC)) return QkvConvBackwardInParts(stream, a);
  std::array<ConvPart<T>, kQkv> part;
  for (int p = 0; p < kQkv; ++p) {
    part[p] = PartOf<T>(a, p);
    part[p].dy_NC = Data<T>(a.dy_NC[p]);
    part[p].dx_NC = DataOrNull<T>(a.dx_NC[p]);
    part[p].accumulate = a.accumulate_dx[p];
    part[p].dw_CW = DataOrNull<float>(a.dw_CW[p]);
  }
  DispatchFours<T>(a.head_dim, [&]<int kFours>() {
    RunConvBackward</*kNorms=*/true, kFours, kTaps, kWide<T>>(
        stream, "qkv_conv backward", ConvParts<T>(part, kQkv, kWide<T>, a.eps));
  });
}

}  // namespace

void QkvConvForward(Stream& stream, const QkvConvForwardArgs& a) {
  if (a.x_NC[0].dim(0) == 0) return;
  DispatchType("qkv_conv", a.x_NC[0].dtype(), [&]<class T>() { RunForward<T>(stream, a); });
}

void QkvConvBackward(Stream& stream, const QkvConvBackwardArgs& a) {
  if (a.x_NC[0].dim(0) == 0) return;
  DispatchType("qkv_conv", a.x_NC[0].dtype(), [&]<class T>() { RunBackward<T>(stream, a); });
}

}  // namespace lt2::cuda
