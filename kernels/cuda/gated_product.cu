#include "kernels/cuda/gate.cuh"
#include "kernels/cuda/map.cuh"
#include "kernels/gated_product.h"

namespace lt2::cuda {
namespace {

template <class Gate>
struct Forward {
  __device__ float operator()(float x, float gate) const { return x * Gate::Value(gate); }
};

template <class T>
struct Gradients {
  T *dx, *dgate;  // null where not wanted; one memory where x is its own gate
  bool accumulate_dx, accumulate_dgate;
};

template <class Gate, int n, class T>
__global__ void __launch_bounds__(256)
    Backward(int64_t size, const T* dy, const T* x, const T* gate, Gradients<T> to) {
  const int64_t first = (int64_t{blockIdx.x} * 2 * 256 + threadIdx.x) * n;
  Packed<T, n> dy_of[2], x_of[2], gate_of[2];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int64_t i = min(first + j * 256 * n, size - n);
    dy_of[j] = LoadPacked<n>(dy + i), x_of[j] = LoadPacked<n>(x + i);
    gate_of[j] = LoadPacked<n>(gate + i);
  }
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int64_t i = first + j * 256 * n;
    if (i >= size) return;
    Piece<n> dx, dgate;
#pragma unroll
    for (int e = 0; e < n; ++e) {
      float value, slope;
      Gate::ValueAndSlope(gate_of[j][e], value, slope);
      dx[e] = dy_of[j][e] * value;
      dgate[e] = dy_of[j][e] * x_of[j][e] * slope;
    }
    if (to.dx != nullptr) StoreOrAdd<n>(to.dx + i, dx, to.accumulate_dx);
    if (to.dgate != nullptr) StoreOrAdd<n>(to.dgate + i, dgate, to.accumulate_dgate);
  }
}

template <class T, class Gate>
void RunBackward(const Stream& stream, const GatedProductBackwardArgs& args) {
  const int64_t size = args.x.size();
  if (size == 0) return;
  const Gradients<T> to{DataOrNull<T>(args.dx), DataOrNull<T>(args.dgate), args.accumulate_dx,
                        args.accumulate_dgate};
  DispatchPieces<T>(size, {args.dy, args.x, args.gate, args.dx, args.dgate}, [&]<int n>() {
    Backward<Gate, n><<<Blocks(size, 2 * 256 * n), 256, 0, Handle(stream)>>>(
        size, Data<T>(args.dy), Data<T>(args.x), Data<T>(args.gate), to);
  });
  CheckLaunch("gated_product backward");
}

}  // namespace

void GatedProductForward(Stream& stream, const GatedProductForwardArgs& args) {
  DispatchType("gated_product", args.x.dtype(), [&]<class T>() {
    DispatchGate<T>(args.kind, [&]<class Gate>() {
      MapOf<T, T, T>::Run(stream, "gated_product", Forward<Gate>{}, args.y, false, args.x,
                          args.gate);
    });
  });
}

void GatedProductBackward(Stream& stream, const GatedProductBackwardArgs& args) {
  DispatchType("gated_product", args.x.dtype(), [&]<class T>() {
    DispatchGate<T>(args.kind, [&]<class Gate>() { RunBackward<T, Gate>(stream, args); });
  });
}

}  // namespace lt2::cuda
