// Eight neighbouring elements at a time: 16 bytes of bf16, 32 of float.
#pragma once

#include "kernels/cuda/common.cuh"

namespace lt2::cuda {

// Whether its rows can be read so.
inline bool InEights(const Tensor& x) {
  return x.shape().back() % 8 == 0 && reinterpret_cast<uintptr_t>(x.raw()) % 16 == 0;
}

template <class T>
struct Eight;

template <>
struct Eight<float> {
  Eight() = default;
  __device__ explicit Eight(const float* from) {
    const float4 a = reinterpret_cast<const float4*>(from)[0];
    const float4 b = reinterpret_cast<const float4*>(from)[1];
    value[0] = a.x, value[1] = a.y, value[2] = a.z, value[3] = a.w;
    value[4] = b.x, value[5] = b.y, value[6] = b.z, value[7] = b.w;
  }
  __device__ void Store(float* to) const {
    reinterpret_cast<float4*>(to)[0] = {value[0], value[1], value[2], value[3]};
    reinterpret_cast<float4*>(to)[1] = {value[4], value[5], value[6], value[7]};
  }
  float value[8];
};

template <>
struct Eight<bf16> {
  Eight() = default;
  __device__ explicit Eight(const bf16* from) {
    const uint4 four = *reinterpret_cast<const uint4*>(from);
    const uint32_t pair[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      value[2 * i] = __uint_as_float(pair[i] << 16);
      value[2 * i + 1] = __uint_as_float(pair[i] & 0xffff0000u);
    }
  }
  __device__ void Store(bf16* to) const {
    uint32_t pair[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const __nv_bfloat162 two = __floats2bfloat162_rn(value[2 * i], value[2 * i + 1]);
      pair[i] = reinterpret_cast<const uint32_t&>(two);
    }
    *reinterpret_cast<uint4*>(to) = {pair[0], pair[1], pair[2], pair[3]};
  }
  float value[8];
};

}  // namespace lt2::cuda
