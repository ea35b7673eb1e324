// LT2_HOPPER_ASM: asm volatile where code is compiled for sm_90a. Code for other architectures,
// which have not these instructions, traps in its place.
#pragma once

#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define LT2_HOPPER_ASM(...) __trap()
#else
#define LT2_HOPPER_ASM(...) asm volatile(__VA_ARGS__)
#endif
