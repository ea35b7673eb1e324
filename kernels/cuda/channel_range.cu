#include <numeric>

#include "kernels/channel_range.h"
#include "kernels/cuda/piece.cuh"

namespace lt2::cuda {
namespace {

// A thread takes a piece of y; x begins at the first of its channels.
template <class T, int n>
__global__ void __launch_bounds__(256)
    Take(int64_t size, int64_t W, int64_t C, const T* x_NW, T* y_NC) {
  const int64_t i = (int64_t{blockIdx.x} * 256 + threadIdx.x) * n;
  if (i < size) Store<n>(y_NC + i, Load<n>(x_NW + i / C * W + i % C));
}

template <class T, int n>
__global__ void __launch_bounds__(256)
    Put(int64_t size, int64_t W, int64_t C, const T* y_NC, T* x_NW, bool add) {
  const int64_t i = (int64_t{blockIdx.x} * 256 + threadIdx.x) * n;
  if (i < size) StoreOrAdd<n>(x_NW + i / C * W + i % C, Load<n>(y_NC + i), add);
}

}  // namespace

void TakeChannels(Stream& stream, const TakeChannelsArgs& args) {
  const int64_t W = args.x_NW.dim(1), C = args.y_NC.dim(1), size = args.y_NC.size();
  if (size == 0) return;
  DispatchType("take_channels", args.x_NW.dtype(), [&]<class T>() {
    DispatchPieces<T>(std::gcd(std::gcd(W, C), args.first), {args.x_NW, args.y_NC}, [&]<int n>() {
      Take<T, n><<<Blocks(size, 256 * n), 256, 0, Handle(stream)>>>(
          size, W, C, Data<T>(args.x_NW) + args.first, Data<T>(args.y_NC));
    });
  });
  CheckLaunch("take_channels");
}

void PutChannels(Stream& stream, const PutChannelsArgs& args) {
  const int64_t W = args.x_NW.dim(1), C = args.y_NC.dim(1), size = args.y_NC.size();
  if (size == 0) return;
  DispatchType("put_channels", args.x_NW.dtype(), [&]<class T>() {
    DispatchPieces<T>(std::gcd(std::gcd(W, C), args.first), {args.y_NC, args.x_NW}, [&]<int n>() {
      Put<T, n><<<Blocks(size, 256 * n), 256, 0, Handle(stream)>>>(
          size, W, C, Data<T>(args.y_NC), Data<T>(args.x_NW) + args.first, args.accumulate_x);
    });
  });
  CheckLaunch("put_channels");
}

}  // namespace lt2::cuda
