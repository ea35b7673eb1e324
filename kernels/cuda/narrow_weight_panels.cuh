// Gradients of narrow projections' weights in bfloat16, dw += dyᵀ x, on Hopper: the copy engine
// brings panels of x and pieces of dy ahead. For projections of whole pieces.
#pragma once

#include <algorithm>

#include "kernels/cuda/behind.cuh"
#include "kernels/cuda/bulk_copy.cuh"
#include "kernels/cuda/narrow_pieces.cuh"
#include "kernels/cuda/scratch.h"
#include "kernels/cuda/tensor_map.h"

namespace lt2::cuda {

// Outputs are at most 16 kTiles. A stage is 64 rows: kAcross panels of 64 columns of x, and a block
// of 8 outputs of each piece. Each of 8 warps has a panel's columns and every kDown-th tile of 16
// rows.
template <int kTiles>
struct NarrowWeightShape {
  static constexpr int kWarps = 8, kAcross = 4, kDown = kWarps / kAcross, kStages = 4;
  static constexpr int kReaders = 32 * kWarps, kThreads = kReaders + 32;  // one warp copies
  static constexpr int kRows = 64, kColumns = 64 * kAcross;
  static constexpr int kPanelBytes = 2 * 64 * kRows, kPieceBytes = 2 * kPiece * kRows;
  static constexpr int kStageBytes = kAcross * kPanelBytes + 2 * kTiles * kPieceBytes;
  static constexpr int kShared = kStages * kStageBytes + Ring<kStages>::kBytes;
  static constexpr int kPairs = 16 * kTiles;  // of a thread's sums
  static_assert(8 * kPairs * kReaders <= kStages * kStageBytes);
};

struct NarrowWeightParts {
  CUtensorMap x, dy[kMostPieces];
  NarrowPieces pieces;
  int rows, width;
  float* partial;  // [bands, 8 pieces, width]
};

// By one thread: stages of a block, its own, then those as far on as there are bands, and so on.
template <class Shape>
__device__ inline void CopyNarrowStages(const NarrowWeightParts& of, Ring<Shape::kStages> ring) {
  const int column = blockIdx.x * Shape::kColumns;
  for (int row = blockIdx.y * Shape::kRows; row < of.rows; row += gridDim.y * Shape::kRows) {
    ring.WaitEmpty();
    ring.Expect(Shape::kAcross * Shape::kPanelBytes + of.pieces.count * Shape::kPieceBytes);
    const uint32_t to = SharedAddress(DynamicShared()) + ring.place * Shape::kStageBytes;
    for (int a = 0; a < Shape::kAcross; ++a) {
      CopyBox(to + a * Shape::kPanelBytes, of.x, ring.Full(ring.place), column + 64 * a, row);
    }
    for (int p = 0; p < of.pieces.count; ++p) {
      CopyBox(to + Shape::kAcross * Shape::kPanelBytes + p * Shape::kPieceBytes, of.dy[p],
              ring.Full(ring.place), 0, row);
    }
    ring.Next();
  }
}

// A block's sums, of all its warps, to its band of partial [bands, outputs, width]. Pair (t, c, h)
// of a thread: output 16 t + 8 h + lane / 4, columns 8 c + 2 (lane mod 4) on.
template <class Shape, int kTiles>
__device__ inline void StoreNarrowSums(const float (&sum)[kTiles][8][4], int outputs, int width,
                                       float* partial) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int across = warp % Shape::kAcross, down = warp / Shape::kAcross;
  float2* pairs = reinterpret_cast<float2*>(DynamicShared());  // [kPairs, kReaders]
  SyncBarrier(1, Shape::kReaders);                             // stages have been read
#pragma unroll
  for (int i = 0; i < Shape::kPairs; ++i) {
    const float* pair = sum[i / 16][i / 2 % 8] + i % 2 * 2;
    pairs[i * Shape::kReaders + threadIdx.x] = make_float2(pair[0], pair[1]);
  }
  SyncBarrier(1, Shape::kReaders);
  const int column = blockIdx.x * Shape::kColumns + across * 64 + lane % 4 * 2;
#pragma unroll 4
  for (int i = down; i < Shape::kPairs; i += Shape::kDown) {
    const int output = i / 16 * 16 + i % 2 * 8 + lane / 4, at = column + i / 2 % 8 * 8;
    const float2* from = pairs + i * Shape::kReaders + across * 32 + lane;
    float2 total = from[0];
#pragma unroll
    for (int d = 1; d < Shape::kDown; ++d) {
      const float2 more = from[d * Shape::kAcross * 32];
      total.x += more.x, total.y += more.y;
    }
    if (output >= outputs || at >= width) continue;
    *reinterpret_cast<float2*>(partial + (int64_t{blockIdx.y} * outputs + output) * width + at) =
        total;
  }
}

template <int kTiles>
__global__ void __launch_bounds__(NarrowWeightShape<kTiles>::kThreads)
    NarrowWeightPanels(const __grid_constant__ NarrowWeightParts of) {
  AdmitKernelBehind();
  using Shape = NarrowWeightShape<kTiles>;
  if (threadIdx.x < of.pieces.count) FetchMap(of.dy[threadIdx.x]);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int across = warp % Shape::kAcross, down = warp / Shape::kAcross;
  const uint32_t shared = SharedAddress(DynamicShared());
  Ring<Shape::kStages> ring{shared + Shape::kStages * Shape::kStageBytes};
  if (threadIdx.x == Shape::kReaders) {
    ring.Init(Shape::kWarps);
    PublishBarriers();
  }
  __syncthreads();
  AwaitKernelBefore();
  if (warp == Shape::kWarps) {
    if (lane == 0) CopyNarrowStages<Shape>(of, ring);
    return;
  }

  float sum[kTiles][8][4] = {};
  const int low = lane % 16, half = lane / 16;
  const uint32_t of_x = across * Shape::kPanelBytes + low * 128;
  const uint32_t of_dy = Shape::kAcross * Shape::kPanelBytes + lane / 8 % 2 * Shape::kPieceBytes +
                         (lane % 8 + half * 8) * 2 * kPiece;
  for (int row = blockIdx.y * Shape::kRows; row < of.rows; row += gridDim.y * Shape::kRows) {
    ring.WaitFull();
    const uint32_t stage = shared + ring.place * Shape::kStageBytes;
#pragma unroll
    for (int i = 0; i < Shape::kRows / 16 / Shape::kDown; ++i) {
      const int k = 16 * (down + Shape::kDown * i);
      uint32_t left[kTiles][4];
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        LoadTransposed(left[t], stage + of_dy + 2 * t * Shape::kPieceBytes + k * 2 * kPiece);
      }
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        uint32_t right[4];
        LoadTransposed(right, stage + of_x + k * 128 + ((2 * c + half) ^ lane % 8) * 16);
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          MultiplyAdd(sum[t][2 * c], left[t], right[0], right[1]);
          MultiplyAdd(sum[t][2 * c + 1], left[t], right[2], right[3]);
        }
      }
    }
    ring.Release(ring.place);
    ring.Next();
  }

  StoreNarrowSums<Shape>(sum, of.pieces.count * kPiece, of.width, of.partial);
}

// dw += the sums over bands.
template <class = void>
__global__ void __launch_bounds__(128) AddNarrowWeights(int bands, int width, const float* partial,
                                                        const __grid_constant__ NarrowPieces dw) {
  AdmitKernelBehind();
  AwaitKernelBefore();
  const int i = blockIdx.x * 128 + threadIdx.x, output = i / width;
  const int sums = dw.count * kPiece * width;
  if (i >= sums) return;
  float* to = dw.of[output / kPiece].dw + int64_t{output % kPiece} * width + i % width;
  const float there = *to;
  float sum = 0;
#pragma unroll 16
  for (int b = 0; b < bands; ++b) sum += partial[int64_t{b} * sums + i];
  *to = there + sum;
}

inline void AddNarrowBands(const Stream& stream, const char* name, unsigned bands, int width,
                           const float* partial, const NarrowPieces& pieces) {
  LaunchBehind(stream, name, AddNarrowWeights<>, Blocks(pieces.count * kPiece * width, 128), 128,
               static_cast<int>(bands), width, partial, pieces);
}

// Bands of rows, where `across` blocks lie side by side: all blocks are at work at once.
template <class Shape>
unsigned NarrowBands(int64_t rows, unsigned across) {
  return static_cast<unsigned>(std::clamp<int64_t>(132 / across, 1, Blocks(rows, Shape::kRows)));
}

// False where there is no copy engine, or a piece is not whole.
inline bool RunNarrowWeightPanels(const Stream& stream, const char* name, int64_t rows,
                                  int64_t width, const bf16* x, const NarrowPieces& pieces) {
  if (!HasHopper() || !pieces.all_wide()) return false;
  DispatchTiles(pieces, [&]<int kTiles>() {
    using Shape = NarrowWeightShape<kTiles>;
    NarrowWeightParts parts = {.x = MatrixMap(x, rows, width, Shape::kRows, 64),
                               .dy = {},
                               .pieces = pieces,
                               .rows = static_cast<int>(rows),
                               .width = static_cast<int>(width),
                               .partial = nullptr};
    for (int p = 0; p < pieces.count; ++p) {  // of which the first 8 columns are read
      parts.dy[p] = RowsMap(pieces.of[p].y, rows, pieces.of[p].stride, Shape::kRows, kPiece);
    }
    const unsigned across = Blocks(width, Shape::kColumns);
    const unsigned bands = NarrowBands<Shape>(rows, across);
    const int64_t sums = pieces.count * kPiece * width;
    parts.partial = ScratchFor<float>(stream, bands * sums);
    LaunchBehindWith(Shape::kShared, stream, name, NarrowWeightPanels<kTiles>, dim3(across, bands),
                     Shape::kThreads, parts);
    AddNarrowBands(stream, name, bands, parts.width, parts.partial, pieces);
  });
  return true;
}

}  // namespace lt2::cuda
