#include "kernels/cuda/piece.cuh"
#include "kernels/repeat_heads.h"

namespace lt2::cuda {
namespace {

// A thread takes a piece of one of x's heads; K is a head's channels.
template <class T, int n>
__global__ void __launch_bounds__(256)
    Forward(int64_t size, int64_t K, int64_t copies, const T* x, T* y) {
  const int64_t i = (int64_t{blockIdx.x} * 256 + threadIdx.x) * n;
  if (i >= size) return;
  const Piece<n> piece = Load<n>(x + i);
  T* to = y + i / K * copies * K + i % K;
  for (int64_t r = 0; r < copies; ++r) Store<n>(to + r * K, piece);
}

template <class T, int n>
__global__ void __launch_bounds__(256)
    Backward(int64_t size, int64_t K, int64_t copies, const T* dy, T* dx, bool add) {
  const int64_t i = (int64_t{blockIdx.x} * 256 + threadIdx.x) * n;
  if (i >= size) return;
  const T* from = dy + i / K * copies * K + i % K;
  Piece<n> sum = Load<n>(from);
#pragma unroll 4
  for (int64_t r = 1; r < copies; ++r) {
    const Piece<n> piece = Load<n>(from + r * K);
#pragma unroll
    for (int c = 0; c < n; ++c) sum[c] += piece[c];
  }
  StoreOrAdd<n>(dx + i, sum, add);
}

}  // namespace

void RepeatHeadsForward(Stream& stream, const RepeatHeadsForwardArgs& args) {
  const int64_t size = args.x.size(), K = args.x.dim(2), copies = args.y.dim(1) / args.x.dim(1);
  if (size == 0) return;
  DispatchType("repeat_heads", args.x.dtype(), [&]<class T>() {
    DispatchPieces<T>(K, {args.x, args.y}, [&]<int n>() {
      Forward<T, n><<<Blocks(size, 256 * n), 256, 0, Handle(stream)>>>(
          size, K, copies, Data<T>(args.x), Data<T>(args.y));
    });
  });
  CheckLaunch("repeat_heads");
}

void RepeatHeadsBackward(Stream& stream, const RepeatHeadsBackwardArgs& args) {
  if (!args.dx.defined() || args.dx.size() == 0) return;
  const int64_t size = args.dx.size(), K = args.dx.dim(2);
  const int64_t copies = args.dy.dim(1) / args.dx.dim(1);
  DispatchType("repeat_heads", args.dy.dtype(), [&]<class T>() {
    DispatchPieces<T>(K, {args.dy, args.dx}, [&]<int n>() {
      Backward<T, n><<<Blocks(size, 256 * n), 256, 0, Handle(stream)>>>(
          size, K, copies, Data<T>(args.dy), Data<T>(args.dx), args.accumulate_dx);
    });
  });
  CheckLaunch("repeat_heads backward");
}

}  // namespace lt2::cuda
