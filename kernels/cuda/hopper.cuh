// LT2_HOPPER_ASM: asm volatile where code is compiled for sm_90a. Code for other architectures,
// which have not these instructions, traps in its place.
#pragma once

#include <algorithm>
#include <iterator>

#include "core/cuda/check.h"

#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define LT2_HOPPER_ASM(...) __trap()
#else
#define LT2_HOPPER_ASM(...) asm volatile(__VA_ARGS__)
#endif

namespace lt2::cuda {

// Whether this build and the thread's GPU have these instructions: kernels that use them are
// launched nowhere else.
inline bool HasHopper() {
  constexpr int kBuiltFor[] = {__CUDA_ARCH_LIST__};
  if (std::find(std::begin(kBuiltFor), std::end(kBuiltFor), 900) == std::end(kBuiltFor)) {
    return false;
  }
  int device = 0, major = 0;
  LT2_CUDA_CHECK(cudaGetDevice(&device));
  LT2_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  return major == 9;
}

}  // namespace lt2::cuda
