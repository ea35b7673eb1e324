// Pieces of neighbouring elements: moved 16 bytes at a time, computed with as floats. And the
// functions of one value that the row and column kernels share.
#pragma once

#include <initializer_list>
#include <type_traits>

#include "kernels/cuda/common.cuh"

namespace lt2::cuda {

// Elements of 16 bytes.
template <class T>
inline constexpr int kWide = 16 / static_cast<int>(sizeof(T));

template <int n>
struct Piece {
  float of[n];
  __device__ float& operator[](int i) { return of[i]; }
  __device__ float operator[](int i) const { return of[i]; }
};

__device__ inline float LowerHalf(uint32_t two) { return __uint_as_float(two << 16); }
__device__ inline float UpperHalf(uint32_t two) { return __uint_as_float(two & 0xffff0000u); }
__device__ inline uint32_t Halves(float lower, float upper) {
  const __nv_bfloat162 two = __floats2bfloat162_rn(lower, upper);
  return *reinterpret_cast<const uint32_t*>(&two);
}

// n is 1 or a multiple of 4; wider pieces are aligned to their bytes, or to 16.
template <int n>
__device__ inline Piece<n> Load(const float* from) {
  Piece<n> piece;
  if constexpr (n == 1) {
    piece[0] = *from;
  } else {
#pragma unroll
    for (int i = 0; i < n; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(from + i);
      piece[i] = four.x, piece[i + 1] = four.y, piece[i + 2] = four.z, piece[i + 3] = four.w;
    }
  }
  return piece;
}
template <int n>
__device__ inline Piece<n> Load(const bf16* from) {
  Piece<n> piece;
  if constexpr (n == 1) {
    piece[0] = __bfloat162float(*from);
  } else if constexpr (n == 4) {
    const uint2 four = *reinterpret_cast<const uint2*>(from);
    piece[0] = LowerHalf(four.x), piece[1] = UpperHalf(four.x);
    piece[2] = LowerHalf(four.y), piece[3] = UpperHalf(four.y);
  } else {
#pragma unroll
    for (int i = 0; i < n; i += 8) {
      const uint4 eight = *reinterpret_cast<const uint4*>(from + i);
      piece[i] = LowerHalf(eight.x), piece[i + 1] = UpperHalf(eight.x);
      piece[i + 2] = LowerHalf(eight.y), piece[i + 3] = UpperHalf(eight.y);
      piece[i + 4] = LowerHalf(eight.z), piece[i + 5] = UpperHalf(eight.z);
      piece[i + 6] = LowerHalf(eight.w), piece[i + 7] = UpperHalf(eight.w);
    }
  }
  return piece;
}

template <int n>
__device__ inline void Store(float* to, const Piece<n>& piece) {
  if constexpr (n == 1) {
    *to = piece[0];
  } else {
#pragma unroll
    for (int i = 0; i < n; i += 4) {
      *reinterpret_cast<float4*>(to + i) =
          make_float4(piece[i], piece[i + 1], piece[i + 2], piece[i + 3]);
    }
  }
}
template <int n>
__device__ inline void Store(bf16* to, const Piece<n>& piece) {
  if constexpr (n == 1) {
    *to = __float2bfloat16_rn(piece[0]);
  } else if constexpr (n == 4) {
    *reinterpret_cast<uint2*>(to) =
        make_uint2(Halves(piece[0], piece[1]), Halves(piece[2], piece[3]));
  } else {
#pragma unroll
    for (int i = 0; i < n; i += 8) {
      *reinterpret_cast<uint4*>(to + i) =
          make_uint4(Halves(piece[i], piece[i + 1]), Halves(piece[i + 2], piece[i + 3]),
                     Halves(piece[i + 4], piece[i + 5]), Halves(piece[i + 6], piece[i + 7]));
    }
  }
}
// Writes, or adds where a gradient is there already.
template <int n, class T>
__device__ inline void StoreOrAdd(T* to, Piece<n> piece, bool add) {
  if (add) {
    const Piece<n> there = Load<n>(to);
#pragma unroll
    for (int i = 0; i < n; ++i) piece[i] += there[i];
  }
  Store<n>(to, piece);
}

// Calls fn.operator()<n>() with n = kMost elements a piece, or single elements where runs of `run`
// elements are no whole pieces or something is not aligned.
template <class T, int kMost = kWide<T>, class Fn>
void DispatchPieces(int64_t run, std::initializer_list<Tensor> tensors, Fn&& fn) {
  bool wide = run % kMost == 0;
  for (const Tensor& tensor : tensors) {
    wide = wide && (!tensor.defined() || reinterpret_cast<uintptr_t>(tensor.raw()) % 16 == 0);
  }
  if (wide) return fn.template operator()<kMost>();
  fn.template operator()<1>();
}

// As exact as float where values are float, the hardware's approximation where they are bf16.
template <class T>
__device__ inline float ExpOf(float x) {
  if constexpr (std::is_same_v<T, bf16>) return __expf(x);
  return expf(x);
}
template <class T>
__device__ inline float SigmoidOf(float x) {
  if constexpr (std::is_same_v<T, bf16>) return __fdividef(1, 1 + __expf(-x));
  return 1 / (1 + expf(-x));
}
// min(x, 0) - log(1 + exp(-|x|)).
__device__ inline float LogSigmoid(float x) { return fminf(x, 0) - log1pf(expf(-fabsf(x))); }

}  // namespace lt2::cuda
