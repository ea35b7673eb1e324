// All gradients of narrow projections in bfloat16 on Hopper: x passes by once for dw += dyᵀ x, and
// leaves shared memory as dx = or += dy w. For up to 32 outputs, in whole pieces.
#pragma once

#include "kernels/cuda/bulk_store.cuh"
#include "kernels/cuda/narrow_weight_panels.cuh"

namespace lt2::cuda {

// As NarrowWeightShape; with kAdd a stage has dx's panels behind x's. Then the weights of the
// columns, a panel of 8 rows for each piece and 64 columns.
template <int kTiles, bool kAdd>
struct NarrowBothShape {
  static constexpr int kWarps = 8, kAcross = 4, kDown = kWarps / kAcross;
  static constexpr int kReaders = 32 * kWarps, kThreads = kReaders + 32;  // one warp copies
  static constexpr int kRows = 64, kColumns = 64 * kAcross, kPieces = 2 * kTiles;
  static constexpr int kPanelBytes = 2 * 64 * kRows, kPieceBytes = 2 * kPiece * kRows;
  static constexpr int kWeightBytes = 2 * 64 * kPiece;  // of a panel
  static constexpr int kPanels = kAdd ? 2 * kAcross : kAcross;
  static constexpr int kStageBytes = kPanels * kPanelBytes + kPieces * kPieceBytes;
  static constexpr int kWeights = kAcross * kPieces * kWeightBytes;
  static constexpr int kStages = std::min(12, (225 * 1024 - kWeights) / kStageBytes);
  static constexpr int kBarriers = kStages * kStageBytes + kWeights;
  static constexpr int kShared = kBarriers + Ring<kStages>::kBytes + kBarrierBytes;
  static constexpr int kPairs = 16 * kTiles;  // of a thread's sums
  static_assert(kStages > 2 && 8 * kPairs * kReaders <= kStages * kStageBytes);
};

struct NarrowBothParts {
  CUtensorMap x, dx, dx_there, dy[4], w[4];
  NarrowPieces pieces;
  int rows, width;
  float* partial;  // [bands, 8 pieces, width]
};

// By one thread: stages as NarrowWeightPanels has them. A piece that is not there is beyond the end
// of another one, where zeros come from.
template <class Shape>
__device__ inline void CopyBothStages(const NarrowBothParts& of, Ring<Shape::kStages> ring) {
  const int column = blockIdx.x * Shape::kColumns;
  for (int row = blockIdx.y * Shape::kRows; row < of.rows; row += gridDim.y * Shape::kRows) {
    ring.WaitEmpty();
    ring.Expect(Shape::kStageBytes);
    uint32_t to = SharedAddress(DynamicShared()) + ring.place * Shape::kStageBytes;
    for (int a = 0; a < Shape::kPanels; ++a, to += Shape::kPanelBytes) {
      CopyBox(to, a < Shape::kAcross ? of.x : of.dx_there, ring.Full(ring.place),
              column + a % Shape::kAcross * 64, row);
    }
    for (int p = 0; p < Shape::kPieces; ++p, to += Shape::kPieceBytes) {
      const bool there = p < of.pieces.count;
      CopyBox(to, of.dy[there ? p : 0], ring.Full(ring.place), 0, there ? row : of.rows);
    }
    ring.Next();
  }
}

// A warp's tile of x becomes dx where it lies, and the copy engine takes it from there: the place
// is free a stage later.
template <int kTiles, bool kAdd>
__global__ void __launch_bounds__(NarrowBothShape<kTiles, kAdd>::kThreads, 1)
    NarrowBoth(const __grid_constant__ NarrowBothParts of) {
  AdmitKernelBehind();
  using Shape = NarrowBothShape<kTiles, kAdd>;
  if (threadIdx.x == Shape::kReaders) FetchMap(of.x), FetchMap(of.dx);
  if (threadIdx.x < of.pieces.count) FetchMap(of.dy[threadIdx.x]), FetchMap(of.w[threadIdx.x]);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int across = warp % Shape::kAcross, down = warp / Shape::kAcross;
  const uint32_t shared = SharedAddress(DynamicShared());
  const uint32_t weights =
      shared + Shape::kStages * Shape::kStageBytes + across * Shape::kPieces * Shape::kWeightBytes;
  Ring<Shape::kStages> ring{shared + Shape::kBarriers};
  const uint32_t weights_there = ring.barriers + ring.kBytes;
  if (threadIdx.x == Shape::kReaders) {
    ring.Init(Shape::kWarps);
    InitBarrier(weights_there, Shape::kAcross);
    PublishBarriers();
  }
  __syncthreads();
  AwaitKernelBefore();
  if (warp == Shape::kWarps) {
    if (lane == 0) CopyBothStages<Shape>(of, ring);
    return;
  }
  const int column = blockIdx.x * Shape::kColumns + 64 * across;
  if (down == 0 && lane == 0) {
    ArriveExpecting(weights_there, Shape::kPieces * Shape::kWeightBytes);
    for (int p = 0; p < Shape::kPieces; ++p) {
      const bool there = p < of.pieces.count;
      CopyBox(weights + p * Shape::kWeightBytes, of.w[there ? p : 0], weights_there, column,
              there ? 0 : kPiece);
    }
  }
  WaitForPhase(weights_there, 0);
  const int low = lane % 16, half = lane / 16;
  uint32_t w[kTiles][4][4];  // of products s, columns 16 c on
#pragma unroll
  for (int s = 0; s < kTiles; ++s) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      LoadTransposed(w[s][c], weights + (2 * s + lane / 8 % 2) * Shape::kWeightBytes +
                                  lane % 8 * 128 + ((2 * c + half) ^ lane % 8) * 16);
    }
  }

  float sum[kTiles][8][4] = {};
  int before = -1;  // the place that is being stored
  const uint32_t of_x = across * Shape::kPanelBytes + low * 128;
  const uint32_t of_dy = Shape::kPanels * Shape::kPanelBytes;
  const uint32_t turned =
      of_dy + lane / 8 % 2 * Shape::kPieceBytes + (lane % 8 + half * 8) * 2 * kPiece;
  const uint32_t upright = of_dy + half * Shape::kPieceBytes + low * 2 * kPiece;
  for (int row = blockIdx.y * Shape::kRows; row < of.rows; row += gridDim.y * Shape::kRows) {
    ring.WaitFull();
    const uint32_t stage = shared + ring.place * Shape::kStageBytes;
#pragma unroll
    for (int i = 0; i < Shape::kRows / 16 / Shape::kDown; ++i) {
      const int k = 16 * (down + Shape::kDown * i);
      uint32_t left[kTiles][4], outputs[kTiles][4];
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        const uint32_t at = stage + 2 * t * Shape::kPieceBytes + k * 2 * kPiece;
        LoadTransposed(left[t], at + turned);
        LoadMatrices(outputs[t], at + upright);
      }
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const uint32_t at = stage + of_x + k * 128 + ((2 * c + half) ^ lane % 8) * 16;
        uint32_t right[4], there[4] = {};
        LoadTransposed(right, at);
        if constexpr (kAdd) LoadMatrices(there, at + Shape::kAcross * Shape::kPanelBytes);
        float dx[2][4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          dx[j / 2][j % 2 * 2] = LowerHalf(there[j]);
          dx[j / 2][j % 2 * 2 + 1] = UpperHalf(there[j]);
        }
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          MultiplyAdd(sum[t][2 * c], left[t], right[0], right[1]);
          MultiplyAdd(sum[t][2 * c + 1], left[t], right[2], right[3]);
          MultiplyAdd(dx[0], outputs[t], w[t][c][0], w[t][c][1]);
          MultiplyAdd(dx[1], outputs[t], w[t][c][2], w[t][c][3]);
        }
        StoreMatrices(at, {Halves(dx[0][0], dx[0][1]), Halves(dx[0][2], dx[0][3]),
                           Halves(dx[1][0], dx[1][1]), Halves(dx[1][2], dx[1][3])});
      }
      PublishStores();
      __syncwarp();
      if (lane == 0) {
        StoreBox(of.dx, stage + across * Shape::kPanelBytes + k * 128, column, row + k);
      }
    }
    if (lane == 0) CloseStores<1>();
    if (before >= 0) ring.Release(before);
    before = ring.place;
    ring.Next();
  }
  if (lane == 0) CloseStores<0>();
  StoreNarrowSums<Shape>(sum, of.pieces.count * kPiece, of.width, of.partial);
}

// False where there is no copy engine, a piece is not whole or there are too many.
inline bool RunNarrowBoth(const Stream& stream, const char* name, int64_t rows, int64_t width,
                          const bf16* x, bf16* dx, bool add, const NarrowPieces& pieces) {
  if (!HasHopper() || !pieces.all_wide() || pieces.count > 4) return false;
  const auto run = [&]<int kTiles, bool kAdd>() {
    using Shape = NarrowBothShape<kTiles, kAdd>;
    NarrowBothParts parts = {.x = MatrixMap(x, rows, width, Shape::kRows, 64),
                             .dx = MatrixMap(dx, rows, width, 16, 64),
                             .dx_there = MatrixMap(dx, rows, width, Shape::kRows, 64),
                             .dy = {},
                             .w = {},
                             .pieces = pieces,
                             .rows = static_cast<int>(rows),
                             .width = static_cast<int>(width),
                             .partial = nullptr};
    for (int p = 0; p < pieces.count; ++p) {
      const NarrowPiece& piece = pieces.of[p];
      parts.dy[p] = RowsMap(piece.y, rows, piece.stride, Shape::kRows, kPiece);
      parts.w[p] = MatrixMap(piece.w, kPiece, width, kPiece, 64);
    }
    const unsigned across = Blocks(width, Shape::kColumns);
    const unsigned bands = NarrowBands<Shape>(rows, across);
    parts.partial = ScratchFor<float>(stream, bands * pieces.count * kPiece * width);
    LaunchBehindWith(Shape::kShared, stream, name, NarrowBoth<kTiles, kAdd>, dim3(across, bands),
                     Shape::kThreads, parts);
    AddNarrowBands(stream, name, bands, parts.width, parts.partial, pieces);
  };
  if (pieces.count <= 2) {
    add ? run.template operator()<1, true>() : run.template operator()<1, false>();
  } else {
    add ? run.template operator()<2, true>() : run.template operator()<2, false>();
  }
  return true;
}

}  // namespace lt2::cuda
