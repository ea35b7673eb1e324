#include "kernels/cuda/conv_bands.cuh"
#include "kernels/cuda/conv_heads.cuh"
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

// Calls fn.operator()<Lanes>() where heads can be convolved each by a half warp: on Hopper, the
// usual ones of bfloat16, values in whole heads of as many channels.
template <class T, class Fn>
bool DispatchHeads(const std::array<ConvPart<T>, kQkv>& part, int64_t head_dim, const Fn& fn) {
  if constexpr (std::is_same_v<T, bf16>) {
    if (!HasHopper()) return false;
    for (const ConvPart<T>& of : part) {
      const auto taps = reinterpret_cast<uintptr_t>(of.in.w_CW);
      const auto gradients = reinterpret_cast<uintptr_t>(of.dw_CW);
      if (of.in.channels % head_dim != 0 || taps % 16 != 0 || gradients % 16 != 0) return false;
    }
    switch (head_dim) {
      case 64:
        return fn.template operator()<HeadLanes<1, 2>>(), true;
      case 96:
        return fn.template operator()<HeadLanes<3, 1>>(), true;
      case 128:
        return fn.template operator()<HeadLanes<1, 4>>(), true;
      default:
        return false;
    }
  }
  return false;
}

template <class T>
void RunForward(Stream& stream, const QkvConvForwardArgs& a) {
  if (!InOneLaunch<T>(a, a.x_NC, a.y_NC)) return QkvConvForwardInParts(stream, a);
  std::array<ConvPart<T>, kQkv> part;
  for (int p = 0; p < kQkv; ++p) {
    part[p] = PartOf<T>(a, p);
    part[p].y_NC = Data<T>(a.y_NC[p]);
  }
  const char* name = "qkv_conv";
  const bool done = DispatchHeads<T>(part, a.head_dim, [&]<class Lanes>() {
    RunConvHeadsForward<Lanes>(stream, name, ConvHeadParts(part, Lanes::kHeadDim, a.eps));
  });
  if (done) return;
  RunConvForward</*kNorms=*/true, kTaps, kWide<T>>(stream, name,
                                                   ConvParts<T>(part, kQkv, kWide<T>, a.eps));
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
  const char* name = "qkv_conv backward";
  const bool done = DispatchHeads<T>(part, a.head_dim, [&]<class Lanes>() {
    RunConvHeadsBackward<Lanes>(stream, name, ConvHeadParts(part, Lanes::kHeadDim, a.eps));
  });
  if (done) return;
  RunConvBackward</*kNorms=*/true, kTaps, kWide<T>>(stream, name,
                                                    ConvParts<T>(part, kQkv, kWide<T>, a.eps));
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
