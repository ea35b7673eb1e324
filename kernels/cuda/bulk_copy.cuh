// One warp copies ahead, warpgroups compute (Hopper): barriers in shared memory that count arrivals
// and bytes, tiles that the copy engine brings, and registers that change hands.
#pragma once

#include <cuda.h>

#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/tensor_core.cuh"

namespace lt2::cuda {

// A barrier is 8 bytes. A phase of it ends after `arrivals`, and the bytes that were expected.
inline constexpr int kBarrierBytes = 8;
__device__ inline void InitBarrier(uint32_t barrier, int arrivals) {
  LT2_HOPPER_ASM("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals)
                 : "memory");
}
// By the thread that began barriers, before __syncthreads().
__device__ inline void PublishBarriers() {
  LT2_HOPPER_ASM("fence.mbarrier_init.release.cluster;" ::: "memory");
  LT2_HOPPER_ASM("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ inline void Arrive(uint32_t barrier) {
  LT2_HOPPER_ASM("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void ArriveExpecting(uint32_t barrier, int bytes) {
  LT2_HOPPER_ASM("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}
// Until the phase of this parity has ended: 0 is the first, and the one before it counts as ended.
__device__ inline void WaitForPhase(uint32_t barrier, uint32_t parity) {
  uint32_t ended = 0;
  do {
    LT2_HOPPER_ASM(
        "{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
        "selp.u32 %0, 1, 0, p;}"
        : "=r"(ended)
        : "r"(barrier), "r"(parity)
        : "memory");
  } while (ended == 0);
}

// One thread: the map itself is on its way, before the first box asks for it.
__device__ inline void FetchMap(const CUtensorMap& map) {
  LT2_HOPPER_ASM("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
// One thread each: starts copying a box (tensor_map.h) that begins at (column, head, row), or
// (column, row); `barrier` counts its bytes.
__device__ inline void CopyBox(uint32_t to, const CUtensorMap& map, uint32_t barrier, int column,
                               int head, int row) {
  LT2_HOPPER_ASM(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(column), "r"(head), "r"(row)
      : "memory");
}
__device__ inline void CopyBox(uint32_t to, const CUtensorMap& map, uint32_t barrier, int column,
                               int row) {
  LT2_HOPPER_ASM(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4}], [%2];" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(column), "r"(row)
      : "memory");
}

// The same of `bytes` contiguous bytes: a multiple of 16, like both addresses.
__device__ inline void CopyBytes(uint32_t to, const void* from, uint32_t barrier, int bytes) {
  LT2_HOPPER_ASM(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier)
      : "memory");
}

// The inverse of LoadTransposed: of four 8x8 matrices lane l has the pair (l / 4, 2 (l mod 4));
// they are written transposed, lane l giving the address of row l mod 8 of matrix l / 8.
__device__ inline void StoreTransposed(uint32_t row, const uint32_t (&from)[4]) {
  LT2_HOPPER_ASM(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
      "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3])
      : "memory");
}

// The inverse of LoadMatrices, lanes giving addresses as there.
__device__ inline void StoreMatrices(uint32_t row, const uint32_t (&from)[4]) {
  LT2_HOPPER_ASM("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
                 "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3])
                 : "memory");
}

// All threads of a warpgroup: from now on it has kCount registers a thread.
template <int kCount>
__device__ inline void ShrinkRegisters() {
  LT2_HOPPER_ASM("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ inline void GrowRegisters() {
  LT2_HOPPER_ASM("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

// Barriers 1 to 15 of the block, each for `threads` threads: those that pass on, and those that
// wait for everybody.
__device__ inline void PassBarrier(int barrier, int threads) {
  LT2_HOPPER_ASM("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ inline void SyncBarrier(int barrier, int threads) {
  LT2_HOPPER_ASM("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// kPlaces places in shared memory that one thread fills in turn and `readers` warps read. Everyone
// keeps a copy of this: it says whose turn it is.
template <int kPlaces>
struct Ring {
  static constexpr int kBytes = 2 * kPlaces * kBarrierBytes;
  uint32_t barriers;  // of kPlaces that are full, then of kPlaces that are empty
  int place = 0;
  uint32_t parity = 0;

  __device__ void Init(int readers) const {
    for (int i = 0; i < kPlaces; ++i) {
      InitBarrier(Full(i), 1);
      InitBarrier(Empty(i), readers);
    }
  }
  __device__ uint32_t Full(int at) const { return barriers + at * kBarrierBytes; }
  __device__ uint32_t Empty(int at) const { return barriers + (kPlaces + at) * kBarrierBytes; }
  __device__ void Next() {
    if (++place == kPlaces) place = 0, parity ^= 1;
  }
  __device__ void Skip(int count) {
    place += count % kPlaces;
    parity ^= count / kPlaces & 1;
    if (place >= kPlaces) place -= kPlaces, parity ^= 1;
  }

  __device__ void WaitEmpty() const { WaitForPhase(Empty(place), parity ^ 1); }
  // Then CopyBox … Full(place).
  __device__ void Expect(int bytes) const { ArriveExpecting(Full(place), bytes); }

  __device__ void WaitFull() const { WaitForPhase(Full(place), parity); }
  // By a whole warp that will not read `at` any more.
  __device__ void Release(int at) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) Arrive(Empty(at));
  }
};

}  // namespace lt2::cuda
