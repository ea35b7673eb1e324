// Tensor-core products of bf16 with float sums, and the copies that feed them: one warp computes
// c [16, 8] += a [16, 16] b [16, 8] (mma.sync, compute capability 8.0 on).
//
// What lane l holds, with r = l / 4 and k = 2 (l mod 4):
//   a: pairs (r, k), (r + 8, k), (r, k + 8), (r + 8, k + 8), each with its right neighbour
//   b: pairs (k, r), (k + 8, r), each with the element below it
//   c: (r, k), (r, k + 1), (r + 8, k), (r + 8, k + 1)
// so two neighbouring c, packed, are an a. Operands in shared memory are rows of a multiple of
// 16 bytes but an odd multiple of them, which keeps ldmatrix free of bank conflicts.
#pragma once

#include "kernels/cuda/common.cuh"

namespace lt2::cuda {

// Where shared memory begins that was asked for at the launch.
__device__ inline unsigned char* DynamicShared() {
  extern __shared__ __align__(128) unsigned char dynamic_shared[];
  return dynamic_shared;
}
// In bytes, as the instructions below take it.
__device__ inline uint32_t SharedAddress(const void* at) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(at));
}

// Four 8x8 matrices; lane l gives the address of row l mod 8 of matrix l / 8, and receives the pair
// (l / 4, 2 (l mod 4)) of each, or of its transpose.
__device__ inline void LoadMatrices(uint32_t (&to)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row));
}
__device__ inline void LoadTransposed(uint32_t (&to)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row));
}

__device__ inline void MultiplyAdd(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                   uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// 16 (8, 4) bytes to shared memory without waiting; zeros where not `valid`, and nothing is read.
__device__ inline void CopyAsync16(uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to),
               "l"(__cvta_generic_to_global(from)), "r"(valid ? 16 : 0)
               : "memory");
}
__device__ inline void CopyAsync8(uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to),
               "l"(__cvta_generic_to_global(from)), "r"(valid ? 8 : 0)
               : "memory");
}
__device__ inline void CopyAsync4(uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to),
               "l"(__cvta_generic_to_global(from)), "r"(valid ? 4 : 0)
               : "memory");
}
// Closes a group of the thread's copies; all groups but the last kPending are there.
__device__ inline void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
__device__ inline void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
// The thread's own copies are there; __syncthreads() makes everybody's visible.
__device__ inline void WaitForCopies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Two floats as bf16, the first in the lower half.
__device__ inline uint32_t Pack(float first, float second) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(second), "f"(first));
  return packed;
}

// 2^x to 2 ulp; 0 where it would be denormal.
__device__ inline float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace lt2::cuda
