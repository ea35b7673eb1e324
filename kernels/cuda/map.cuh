// Elementwise kernels of one output: out_i = fn(in_i, …).
#pragma once

#include <tuple>

#include "kernels/cuda/piece.cuh"

namespace lt2::cuda {

inline constexpr int kMapAtOnce = 2;  // pieces of a thread, all read before any is written

// All loads are under way before any value is used: where there is nothing, the last piece again.
template <int n, class Fn, class Out, class... In>
__global__ void __launch_bounds__(256)
    MapKernel(int64_t size, Fn fn, Out* out, bool add, const In*... in) {
  const int64_t first = (int64_t{blockIdx.x} * kMapAtOnce * 256 + threadIdx.x) * n;
  std::tuple<Packed<In, n>...> read[kMapAtOnce];
#pragma unroll
  for (int j = 0; j < kMapAtOnce; ++j) {
    const int64_t i = min(first + j * 256 * n, size - n);
    read[j] = {LoadPacked<n>(in + i)...};
  }
#pragma unroll
  for (int j = 0; j < kMapAtOnce; ++j) {
    const int64_t i = first + j * 256 * n;
    if (i >= size) return;
    Piece<n> result;
#pragma unroll
    for (int e = 0; e < n; ++e) {
      result[e] = std::apply([&](const auto&... x) { return fn(x[e]...); }, read[j]);
    }
    StoreOrAdd<n>(out + i, result, add);
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
