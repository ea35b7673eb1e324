// Narrow projections of whole rows in bfloat16, y = x wᵀ: one block a processor keeps the weights
// in registers while the copy engine brings rows ahead. For up to 32 outputs and the usual widths.
#pragma once

#include "kernels/cuda/behind.cuh"
#include "kernels/cuda/narrow_pieces.cuh"
#include "kernels/cuda/row_ring.cuh"

namespace lt2::cuda {

// Rows are of 256 kSteps columns, outputs at most 16 kTiles. Each of 8 warps has an eighth of the
// columns; a stage is 8 rows, the columns of the products, and each warp finishes one.
template <int kSteps, int kTiles>
struct NarrowRowsShape {
  static constexpr int kWarps = 8, kThreads = 32 * kWarps, kRows = 8, kStages = 4;
  static constexpr int kWidth = 256 * kSteps, kRowBytes = 2 * kWidth;
  static constexpr int kPitch = kRowBytes + 64;  // two rows' quarters in other banks
  static constexpr int kStageBytes = kRows * kPitch;
  static constexpr int kSumPitch = 16 * kTiles + 4;
  static constexpr int kSums = kWarps * kRows * kSumPitch;  // of one stage
  // The stages, two stages' sums, the barriers.
  static constexpr int kShared = kStages * (kStageBytes + kBarrierBytes) + 2 * kSums * 4;
};

// A block's stages of rows: its own, then those as far on as there are blocks, and so on. The last
// row is the first to be read: what has just been written is in the cache.
template <class Shape>
struct NarrowRows {
  int64_t rows;
  const bf16* x;
  int lane = threadIdx.x % 32;
  uint32_t barriers =
      SharedAddress(DynamicShared()) + Shape::kShared - Shape::kStages * kBarrierBytes;

  __device__ int64_t Step() const { return int64_t{gridDim.x} * Shape::kRows; }
  // Negative beyond the last one.
  __device__ int64_t First() const {
    return (rows - 1) / Shape::kRows * Shape::kRows - int64_t{blockIdx.x} * Shape::kRows;
  }
  __device__ const unsigned char* Stage(int at) const {
    return DynamicShared() + at * Shape::kStageBytes;
  }
  // By one warp.
  __device__ void Begin() const {
    if (lane == 0) {
      for (int s = 0; s < Shape::kStages; ++s) InitBarrier(barriers + s * kBarrierBytes, 1);
      PublishBarriers();
    }
    __syncwarp();
    for (int s = 0; s < Shape::kStages; ++s) Copy(s, First() - s * Step());
  }
  __device__ void Copy(int to, int64_t first) const {
    if (first < 0) return;
    const int count = static_cast<int>(min(rows - first, int64_t{Shape::kRows}));
    const uint32_t barrier = barriers + to * kBarrierBytes;
    if (lane == 0) ArriveExpecting(barrier, count * Shape::kRowBytes);
    __syncwarp();
    if (lane >= count) return;
    CopyBytes(SharedAddress(Stage(to) + lane * Shape::kPitch), x + (first + lane) * Shape::kWidth,
              barrier, Shape::kRowBytes);
  }
};

// The inner index of a product is any order of columns, if both operands agree: lane (g, q) reads
// 8 neighbours at column 32 s + 8 q of row g, words 0 and 1 of which are one product's, 2 and 3
// another's.
template <int kSteps, int kTiles>
__global__ void __launch_bounds__(256, 1)
    NarrowRowsForward(int64_t rows, const bf16* x, const __grid_constant__ NarrowPieces y) {
  AdmitKernelBehind();
  AwaitKernelBefore();
  using Shape = NarrowRowsShape<kSteps, kTiles>;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
  const NarrowRows<Shape> ring{rows, x};
  if (warp == 0) ring.Begin();
  const int column = warp * 32 * kSteps + 8 * q;

  uint4 w[kTiles][kSteps][2];
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int p = 2 * t + half;
      const bool there = p < y.count && g < y.of[p].size;
      const bf16* from = there ? y.of[p].w + g * Shape::kWidth : y.of[0].w;
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        w[t][s][half] = *reinterpret_cast<const uint4*>(from + column + 32 * s);
        if (!there) w[t][s][half] = {};
      }
    }
  }
  NarrowPiece finished = {};  // by this thread, in row `warp` of a stage
  if (lane / kPiece < y.count) finished = y.of[lane / kPiece];
  const int j = lane % kPiece;
  __syncthreads();

  int stage = 0, turn = 0;
  uint32_t parity = 0;
  for (int64_t first = ring.First(); first >= 0; first -= ring.Step()) {
    WaitForPhase(ring.barriers + stage * kBarrierBytes, parity);
    const unsigned char* from = ring.Stage(stage) + g * Shape::kPitch + 2 * column;
    float sum[kTiles][2][4] = {};  // even and odd products
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const uint4 four = *reinterpret_cast<const uint4*>(from + 64 * s);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const uint4 &a = w[t][s][0], &b = w[t][s][1];
        MultiplyAdd(sum[t][0], {a.x, b.x, a.y, b.y}, four.x, four.y);
        MultiplyAdd(sum[t][1], {a.z, b.z, a.w, b.w}, four.z, four.w);
      }
    }
    float* sums = reinterpret_cast<float*>(DynamicShared() + Shape::kStages * Shape::kStageBytes) +
                  turn * Shape::kSums;
    float* to = sums + (warp * Shape::kRows + 2 * q) * Shape::kSumPitch + g;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        to[k % 2 * Shape::kSumPitch + 16 * t + k / 2 * 8] = sum[t][0][k] + sum[t][1][k];
      }
    }
    __syncthreads();  // the stage has been read, the sums are there
    if (warp == 0) ring.Copy(stage, first - Shape::kStages * ring.Step());
    if (++stage == Shape::kStages) stage = 0, parity ^= 1;
    turn ^= 1;
    float total = 0;
#pragma unroll
    for (int v = 0; v < Shape::kWarps && lane < 16 * kTiles; ++v) {
      total += sums[(v * Shape::kRows + warp) * Shape::kSumPitch + lane];
    }
    const float right = __shfl_down_sync(~0u, total, 1);
    if (first + warp >= rows || j >= finished.size) continue;
    bf16* at = finished.y + (first + warp) * finished.stride + j;
    if (!finished.wide) {
      Put(at, 0, total);
    } else if (j % 2 == 0) {
      *reinterpret_cast<uint32_t*>(at) = Halves(total, right);
    }
  }
}

// False where rows or outputs are of other sizes.
inline bool RunNarrowRows(const Stream& stream, const char* name, int64_t rows, int64_t width,
                          const bf16* x, const NarrowPieces& y) {
  const auto launch = [&]<int kSteps, int kTiles>() {
    using Shape = NarrowRowsShape<kSteps, kTiles>;
    const auto blocks = std::min<unsigned>(Processors(), Blocks(rows, Shape::kRows));
    LaunchBehindWith(Shape::kShared, stream, name, NarrowRowsForward<kSteps, kTiles>, blocks,
                     Shape::kThreads, rows, x, y);
  };
  return y.count <= 4 && DispatchRingPieces(width, [&]<int kSteps>() {
           y.count <= 2 ? launch.template operator()<kSteps, 1>()
                        : launch.template operator()<kSteps, 2>();
         });
}

}  // namespace lt2::cuda
