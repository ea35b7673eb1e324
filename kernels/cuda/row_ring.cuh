// Passes over rows of bfloat16 by single warps: each has a ring of rows in shared memory, which the
// copy engine fills ahead, and needs nobody else to sum over a row. For rows of 256 kPieces
// elements, which a warp takes in pieces of 8 a lane.
#pragma once

#include <algorithm>

#include "kernels/cuda/bulk_copy.cuh"
#include "kernels/cuda/piece.cuh"

namespace lt2::cuda {

inline constexpr int kRingWarps = 8;  // of a block; one block shares a processor with none

// Calls fn.operator()<kPieces>() for the usual widths; false for others, and without a copy engine.
template <class Fn>
bool DispatchRingPieces(int64_t width, const Fn& fn) {
  if (!HasHopper()) return false;
  switch (width) {
    case 512:
      return fn.template operator()<2>(), true;
    case 1024:
      return fn.template operator()<4>(), true;
    case 1536:
      return fn.template operator()<6>(), true;
    case 2048:
      return fn.template operator()<8>(), true;
    default:
      return false;
  }
}
// Whether what is there of them begins at multiples of 16 bytes.
inline bool InSixteens(std::initializer_list<Tensor> tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const Tensor& x) {
    return !x.defined() || reinterpret_cast<uintptr_t>(x.raw()) % 16 == 0;
  });
}
// One block a processor, unless that leaves warps with fewer rows than their rings hold.
inline unsigned RingBlocks(int64_t rows) {
  return static_cast<unsigned>(std::clamp<int64_t>(rows / (4 * kRingWarps), 1, 132));
}

// A warp's rows of kInputs tensors: its own of the block's, then those as far on as there are warps
// in the grid, and so on. The last row is the first to be read: what the operator before has just
// written is in the cache, and the one behind begins where this one ends.
template <int kInputs, int kPieces>
struct RowRing {
  static constexpr int kWidth = 256 * kPieces, kRowBytes = 2 * kWidth;
  static constexpr int kStages = std::clamp(24576 / (kInputs * kRowBytes), 2, 4);
  static constexpr int kStageBytes = kInputs * kRowBytes;
  // Of the block; behind the rows are the barriers.
  static constexpr int kBytes = kRingWarps * kStages * (kStageBytes + kBarrierBytes);

  const bf16* inputs[kInputs];
  int64_t row;  // that comes next: at an end where it is negative
  uint32_t barriers;
  int warp, lane, stage = 0;
  uint32_t parity = 0;

  __device__ RowRing(const bf16* const (&from)[kInputs], int64_t rows)
      : warp(threadIdx.x / 32), lane(threadIdx.x % 32) {
    for (int k = 0; k < kInputs; ++k) inputs[k] = from[k];
    row = rows - 1 - (int64_t{blockIdx.x} * kRingWarps + warp);
    barriers = SharedAddress(DynamicShared()) + kRingWarps * kStages * kStageBytes +
               warp * kStages * kBarrierBytes;
    if (lane == 0) {
      for (int s = 0; s < kStages; ++s) InitBarrier(barriers + s * kBarrierBytes, 1);
      PublishBarriers();
      for (int s = 0; s < kStages; ++s) Copy(s, row - s * Step());
    }
    __syncwarp();
  }
  static __device__ int64_t Step() { return int64_t{gridDim.x} * kRingWarps; }
  __device__ int Column(int piece) const { return (piece * 32 + lane) * 8; }
  __device__ bf16* Slot(int at) const {
    return reinterpret_cast<bf16*>(DynamicShared() + (warp * kStages + at) * kStageBytes);
  }
  __device__ void Copy(int to, int64_t from) const {
    if (from < 0) return;
    const uint32_t barrier = barriers + to * kBarrierBytes, slot = SharedAddress(Slot(to));
    ArriveExpecting(barrier, kStageBytes);
#pragma unroll
    for (int k = 0; k < kInputs; ++k) {
      CopyBytes(slot + k * kRowBytes, inputs[k] + from * kWidth, barrier, kRowBytes);
    }
  }
  // The row is there.
  __device__ const bf16* Await() const {
    WaitForPhase(barriers + stage * kBarrierBytes, parity);
    return Slot(stage);
  }
  // Reads anew each time: there are no registers to keep a row in.
  __device__ Packed<bf16, 8> Get(const bf16* here, int input, int piece) const {
    Packed<bf16, 8> to;
    asm volatile("ld.volatile.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to.word[0]), "=r"(to.word[1]), "=r"(to.word[2]), "=r"(to.word[3])
                 : "r"(SharedAddress(here + input * kWidth + Column(piece))));
    return to;
  }
  // The row has been read: another takes its place. On to the next.
  __device__ void Next() {
    __syncwarp();
    if (lane == 0) Copy(stage, row - kStages * Step());
    row -= Step();
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

// A number of every row of a RowRing: 32 of a warp's rows at a time.
struct RowNumbers {
  const float* numbers_N;
  float mine = 0;
  int known = 0;

  __device__ float Get(int64_t row, int64_t step) {
    if (known == 0) mine = numbers_N[max(row - threadIdx.x % 32 * step, int64_t{0})];
    const float number = __shfl_sync(~0u, mine, known);
    known = (known + 1) % 32;
    return number;
  }
};

// to[column] = the sum over the block's warps of what each lane has summed of its columns. After
// all rows: their place is used again.
template <int kPieces>
__device__ inline void StoreWarpColumnSums(const Piece<8> (&sums)[kPieces], float* to) {
  constexpr int kWidth = 256 * kPieces;
  float* of_warp = reinterpret_cast<float*>(DynamicShared());  // [kRingWarps, kWidth]
  __syncthreads();
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
    Store<8>(of_warp + threadIdx.x / 32 * kWidth + (j * 32 + threadIdx.x % 32) * 8, sums[j]);
  }
  __syncthreads();
  for (int c = threadIdx.x; c < kWidth; c += 32 * kRingWarps) {
    float sum = of_warp[c];
#pragma unroll
    for (int w = 1; w < kRingWarps; ++w) sum += of_warp[w * kWidth + c];
    to[c] = sum;
  }
}

template <class Ring, class Kernel, class... Args>
void LaunchRing(const Stream& stream, const char* name, Kernel* kernel, unsigned blocks,
                const Args&... args) {
  LT2_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Ring::kBytes));
  kernel<<<blocks, 32 * kRingWarps, Ring::kBytes, Handle(stream)>>>(args...);
  CheckLaunch(name);
}

}  // namespace lt2::cuda
