// Elementwise kernels of one output: out_i = fn(in_i, …).
#pragma once

#include "kernels/cuda/piece.cuh"

namespace lt2::cuda {

inline constexpr int kMapAtOnce = 2;  // pieces of a thread, all read before any is written

template <int n, class Fn, class... P>
__device__ inline Piece<n> Apply(const Fn& fn, const P&... in) {
  Piece<n> out;
#pragma unroll
  for (int i = 0; i < n; ++i) out[i] = fn(in[i]...);
  return out;
}

template <int n, class Fn, class Out, class... In>
__global__ void __launch_bounds__(256)
    MapKernel(int64_t size, Fn fn, Out* out, bool add, const In*... in) {
  const int64_t first = (int64_t{blockIdx.x} * kMapAtOnce * 256 + threadIdx.x) * n;
  Piece<n> result[kMapAtOnce];
#pragma unroll
  for (int j = 0; j < kMapAtOnce; ++j) {
    const int64_t i = first + j * 256 * n;
    if (i < size) result[j] = Apply<n>(fn, Load<n>(in + i)...);
  }
#pragma unroll
  for (int j = 0; j < kMapAtOnce; ++j) {
    const int64_t i = first + j * 256 * n;
    if (i < size) StoreOrAdd<n>(out + i, result[j], add);
  }
}

// MapOf<Out, In…>::Run: fn takes and gives floats. `out` may be one of the inputs.
template <class Out, class... In>
struct MapOf {
  // Inputs and output have one size; their types are those of the template.
  template <class Fn, class... Tensors>
  static void Run(const Stream& stream, const char* name, const Fn& fn, const Tensor& out, bool add,
                  const Tensors&... in) {
    static_assert(sizeof...(In) == sizeof...(Tensors));
    const int64_t size = out.size();
    if (size == 0) return;
    DispatchPieces<Widest>(size, {out, in...}, [&]<int n>() {
      MapKernel<n><<<Blocks(size, kMapAtOnce * 256 * n), 256, 0, Handle(stream)>>>(
          size, fn, Data<Out>(out), add, static_cast<const In*>(Data<In>(in))...);
    });
    CheckLaunch(name);
  }

 private:
  // The narrowest element makes the longest piece.
  using Widest = std::conditional_t<(std::is_same_v<Out, bf16> || ... || std::is_same_v<In, bf16>),
                                    bf16, float>;
};

}  // namespace lt2::cuda
