#include "kernels/leading_channels.h"

#include "kernels/cpu/blocks.h"

namespace lt2::cpu {
namespace {

constexpr int64_t kRowBlock = 32;

}  // namespace

void LeadingChannelsForward(Stream&, const LeadingChannelsForwardArgs& args) {
  const int64_t N = args.x_NW.dim(0), W = args.x_NW.dim(1), C = args.y_NC.dim(1);
  DispatchFloat(args.x_NW.dtype(), [&]<class T>() {
    const T* x = args.x_NW.data<T>();
    T* y = args.y_NC.data<T>();
    ForEachBlock(N, kRowBlock, N * C, [=](int64_t, int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) std::copy_n(x + n * W, C, y + n * C);
    });
  });
}

void LeadingChannelsBackward(Stream&, const LeadingChannelsBackwardArgs& args) {
  const int64_t N = args.dx_NW.dim(0), W = args.dx_NW.dim(1), C = args.dy_NC.dim(1);
  const bool accumulate = args.accumulate_dx;
  DispatchFloat(args.dx_NW.dtype(), [&]<class T>() {
    const T* dy = args.dy_NC.data<T>();
    T* dx = args.dx_NW.data<T>();
    ForEachBlock(N, kRowBlock, N * W, [=](int64_t, int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        Store(dx + n * W, dy + n * C, C, accumulate);
        if (!accumulate) std::fill(dx + n * W + C, dx + (n + 1) * W, T(0));
      }
    });
  });
}

}  // namespace lt2::cpu
