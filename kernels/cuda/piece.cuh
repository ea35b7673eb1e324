// Pieces of neighbouring elements: moved 16 bytes at a time, computed with as floats. And the
// functions of one value that the row and column kernels share.
#pragma once

#include <initializer_list>
#include <type_traits>

#include "kernels/cuda/tensor_core.cuh"

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

// n elements as they lie in memory. Loads whose values are looked at later are all on their way
// together; to read Pieces one by one, each behind its own condition, is to wait for each.
template <class T, int n>
struct alignas(n * sizeof(T) < 16 ? n * sizeof(T) : 16) Packed {
  static_assert(n * sizeof(T) % 8 == 0);
  uint32_t word[n * sizeof(T) / 4];

  __device__ float operator[](int i) const {
    if constexpr (std::is_same_v<T, float>) {
      return __uint_as_float(word[i]);
    } else {
      return i % 2 == 0 ? LowerHalf(word[i / 2]) : UpperHalf(word[i / 2]);
    }
  }
};
template <class T>
struct Packed<T, 1> {
  T value;
  __device__ float operator[](int) const { return Get(&value, 0); }
};

// n is 1 or a multiple of 4; wider pieces are aligned to their bytes, or to 16.
template <int n, class T>
__device__ inline Packed<T, n> LoadPacked(const T* from) {
  Packed<T, n> to;
  if constexpr (n == 1) {
    to.value = *from;
  } else if constexpr (n * sizeof(T) == 8) {
    const uint2 two = *reinterpret_cast<const uint2*>(from);
    to.word[0] = two.x, to.word[1] = two.y;
  } else {
    constexpr int kWords = sizeof(to) / 4;
#pragma unroll
    for (int w = 0; w < kWords; w += 4) {
      const uint4 four = reinterpret_cast<const uint4*>(from)[w / 4];
      to.word[w] = four.x, to.word[w + 1] = four.y;
      to.word[w + 2] = four.z, to.word[w + 3] = four.w;
    }
  }
  return to;
}
template <class T, int n>
__device__ inline Piece<n> Unpacked(const Packed<T, n>& packed) {
  Piece<n> piece;
#pragma unroll
  for (int i = 0; i < n; ++i) piece[i] = packed[i];
  return piece;
}
template <int n, class T>
__device__ inline Piece<n> Load(const T* from) {
  return Unpacked(LoadPacked<n>(from));
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

// The hardware's approximation; 0 of infinity.
__device__ inline float FastReciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// As exact as float where values are float, the hardware's approximation where they are bf16.
template <class T>
__device__ inline float ExpOf(float x) {
  if constexpr (std::is_same_v<T, bf16>) return __expf(x);
  return expf(x);
}
template <class T>
__device__ inline float SigmoidOf(float x) {
  constexpr float kLog2E = 1.4426950408889634f;
  if constexpr (std::is_same_v<T, bf16>) return FastReciprocal(1 + Exp2(-kLog2E * x));
  return 1 / (1 + expf(-x));
}
// min(x, 0) - log(1 + exp(-|x|)).
__device__ inline float LogSigmoid(float x) { return fminf(x, 0) - log1pf(expf(-fabsf(x))); }

}  // namespace lt2::cuda
