// A slice of a state in the registers of a warpgroup, transposed: 64 value columns by the key's
// width; and its products with a chunk's operands.
#pragma once

#include "kernels/cuda/scan_state_stages.cuh"

namespace lt2::cuda {

// Where a lane finds its row of four 8x8 matrices in a tile whose rows are tokens or key channels
// and whose columns are the slice's: 16 rows from the tile's begin on, 16 columns of the warp.
__device__ inline uint32_t OfLane() {
  const int lane = threadIdx.x % 32, row = lane / 16 * 8 + lane % 8;
  return PanelOffset(kPanel, row, threadIdx.x / 32 * 2 + lane / 8 % 2);
}

// An operand in registers: 64 value columns by 16 tokens or channels a step.
template <int kSteps>
struct PassFragments {
  uint32_t of[kSteps][4];

  __device__ void Load(uint32_t tile) {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      LoadTransposed(of[s], tile + OfLane() + s * 16 * kPanelRowBytes);
    }
  }
  __device__ void Store(uint32_t tile) const {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      StoreTransposed(tile + OfLane() + s * 16 * kPanelRowBytes, of[s]);
    }
  }
  // Zeros past `rows`.
  __device__ void Keep(int rows) {
    if (rows >= 16 * kSteps) return;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = 16 * s + i / 2 * 8 + threadIdx.x % 4 * 2;
        if (row + 1 >= rows) of[s][i] = row < rows ? of[s][i] & 0xffff : 0;
      }
    }
  }
};

template <class P>
struct StateSlice {
  float of[P::kParts][P::kPartWidth / 2];

  // fn(value column of the slice, channel, x, y): y that of the next channel.
  template <class Fn>
  __device__ void ForEach(const Fn& fn) {
    const int lane = threadIdx.x % 32, column = threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
    for (int p = 0; p < P::kParts; ++p) {
#pragma unroll
      for (int i = 0; i < P::kPartWidth / 4; ++i) {
        fn(column + i % 2 * 8, p * P::kPartWidth + i / 2 * 8 + lane % 4 * 2, of[p][2 * i],
           of[p][2 * i + 1]);
      }
    }
  }
  __device__ void Load(const float* from, int k, int width, int begin) {
    ForEach([&](int c, int d, float& x, float& y) {
      const float* at = from + int64_t{d} * width + begin + c;
      x = d < k && begin + c < width ? at[0] : 0;
      y = d + 1 < k && begin + c < width ? at[width] : 0;
    });
  }
  __device__ void Store(float* to, int k, int width, int begin, bool add) {
    ForEach([&](int c, int d, float x, float y) {
      float* at = to + int64_t{d} * width + begin + c;
      if (d < k && begin + c < width) PutOrAdd(at, 0, x, add);
      if (d + 1 < k && begin + c < width) PutOrAdd(at, width, y, add);
    });
  }
  __device__ void Decay(const float* decay) {
    ForEach([&](int, int d, float& x, float& y) {
      const float2 of_pair = *reinterpret_cast<const float2*>(decay + d);
      x *= of_pair.x, y *= of_pair.y;
    });
  }
  __device__ PassFragments<P::kSteps> Rounded() const {
    PassFragments<P::kSteps> rounded;
#pragma unroll
    for (int s = 0; s < P::kSteps; ++s) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* pair = of[16 * s / P::kPartWidth] + 16 * s % P::kPartWidth / 2 + 2 * i;
        rounded.of[s][i] = Pack(pair[0], pair[1]);
      }
    }
    return rounded;
  }
};

template <class P>
__device__ inline uint64_t OperandDescriptor(uint32_t operand) {
  return P::kColumns == 64 ? Descriptor(operand, P::kPanelBytes)
                           : NarrowDescriptor(operand, P::kPanelBytes);
}
// Queues u = S operand^T.
template <class P>
__device__ inline void QueueRead(float (&u)[32], const PassFragments<P::kSteps>& state,
                                 uint32_t operand) {
  const uint64_t of_operand = OperandDescriptor<P>(operand);
#pragma unroll
  for (int s = 0; s < P::kSteps; ++s) {
    const int panel = 16 * s / P::kColumns, within = 16 * s % P::kColumns * 2;
    MultiplyHeld(u, state.of[s], of_operand + (panel * P::kPanelBytes + within) / 16, s > 0);
  }
}
// Queues S += u operand.
template <class P>
__device__ inline void QueueWrite(StateSlice<P>& state, const PassFragments<4>& u,
                                  uint32_t operand) {
  const uint64_t of_operand = OperandDescriptor<P>(operand);
#pragma unroll
  for (int s = 0; s < 4; ++s) {
#pragma unroll
    for (int p = 0; p < P::kParts; ++p) {
      const int panel = p * P::kPartWidth / P::kColumns;
      MultiplyTransposed(state.of[p], u.of[s],
                         of_operand + (panel * P::kPanelBytes + s * 16 * P::kColumns * 2) / 16,
                         true);
    }
  }
}

}  // namespace lt2::cuda
