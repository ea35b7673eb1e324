#include <numeric>

#include "kernels/cuda/piece.cuh"
#include "kernels/leading_channels.h"

namespace lt2::cuda {
namespace {

template <class T, int n>
__global__ void __launch_bounds__(256)
    Forward(int64_t size, int64_t W, int64_t C, const T* x_NW, T* y_NC) {
  const int64_t i = (int64_t{blockIdx.x} * 256 + threadIdx.x) * n;
  if (i < size) Store<n>(y_NC + i, Load<n>(x_NW + i / C * W + i % C));
}

// A thread takes a piece of dx; only where gradients are there already may the rest be skipped.
template <class T, int n>
__global__ void __launch_bounds__(256)
    Backward(int64_t size, int64_t W, int64_t C, const T* dy_NC, T* dx_NW, bool add) {
  const int64_t i = (int64_t{blockIdx.x} * 256 + threadIdx.x) * n;
  if (i >= size) return;
  const int64_t row = i / W, column = i % W;
  if (column < C) {
    StoreOrAdd<n>(dx_NW + i, Load<n>(dy_NC + row * C + column), add);
  } else if (!add) {
    Store<n>(dx_NW + i, Piece<n>{});
  }
}

}  // namespace

void LeadingChannelsForward(Stream& stream, const LeadingChannelsForwardArgs& args) {
  const int64_t W = args.x_NW.dim(1), C = args.y_NC.dim(1), size = args.y_NC.size();
  if (size == 0) return;
  DispatchType("leading_channels", args.x_NW.dtype(), [&]<class T>() {
    DispatchPieces<T>(std::gcd(W, C), {args.x_NW, args.y_NC}, [&]<int n>() {
      Forward<T, n><<<Blocks(size, 256 * n), 256, 0, Handle(stream)>>>(
          size, W, C, Data<T>(args.x_NW), Data<T>(args.y_NC));
    });
  });
  CheckLaunch("leading_channels");
}

void LeadingChannelsBackward(Stream& stream, const LeadingChannelsBackwardArgs& args) {
  const int64_t W = args.dx_NW.dim(1), C = args.dy_NC.dim(1), size = args.dx_NW.size();
  if (size == 0) return;
  DispatchType("leading_channels", args.dx_NW.dtype(), [&]<class T>() {
    DispatchPieces<T>(std::gcd(W, C), {args.dy_NC, args.dx_NW}, [&]<int n>() {
      Backward<T, n><<<Blocks(size, 256 * n), 256, 0, Handle(stream)>>>(
          size, W, C, Data<T>(args.dy_NC), Data<T>(args.dx_NW), args.accumulate_dx);
    });
  });
  CheckLaunch("leading_channels backward");
}

}  // namespace lt2::cuda
