// Matrix products of bf16 by blocks of two warpgroups that compute and one that copies (Hopper).
//
// Each warpgroup computes a tile of 128 x 128 by itself, the two of them by turns: while one
// multiplies, the other does with its sums what they are for. A warp copies operands ahead; of the
// two blocks of a cluster, which have 128 rows each and the same columns, each copies half of the
// columns' operand for both. Blocks stay and take one job after another.
//
// A Problem says what the jobs are, how operands are copied, and what becomes of the sums:
//   kTurned: whether a step of the columns' operand is 64 rows k of 128 columns, as two panels, and
//     not 128 rows of 64 k, as that of the rows' is
//   int jobs(), int steps(), ProductJob JobAt(int index)
//   void Copy(const StepPlace&, const ProductJob&, int step): one thread; rows' operand of its own
//     block, its half of the columns' to all
//   void Begin(const ProductJob&): before the products; void Finish(const ProductJob&, sums)
// where the job's row is the block's own.
#pragma once

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/piece.cuh"
#include "kernels/cuda/warpgroup.cuh"

namespace lt2::cuda {

inline constexpr int kTileRows = 128, kStepDepth = 64;  // of a tile; of a step into the product
inline constexpr int kTilePanelBytes = kTileRows * kPanelRowBytes;  // 128 rows of 64 columns
inline constexpr int kHalfPanelBytes = kTilePanelBytes / 2;
inline constexpr int kStepBytes = 2 * kTilePanelBytes;
inline constexpr int kProductCluster = 2, kProductThreads = 3 * 128, kProductAlignment = 1024;
inline constexpr uint32_t kAllRanks = (1 << kProductCluster) - 1;

// The sums of a cluster's tiles, whose rows begin at `row`.
struct ProductJob {
  int row, column;
};
// Where a step goes: the block's own rows, and its half of the columns; `full` counts bytes.
struct StepPlace {
  uint32_t rows, half, full;
  int rank;
};
// Of a thread: rows of 64 of the tile, columns as of a product.
using ProductSums = float[2][64];

// All of shared memory is steps on their way: they take as long as a handful of products.
using StepRing = Ring<7>;
inline constexpr int kStepsBytes = 7 * kStepBytes;
inline constexpr int kProductSharedBytes = kStepsBytes + StepRing::kBytes + kProductAlignment;

template <class Problem>
__device__ inline void CopySteps(const Problem& problem, uint32_t shared, StepRing ring) {
  const bool leads = threadIdx.x % 32 == 0;
  const int rank = ClusterRank(), clusters = gridDim.x / kProductCluster;
  for (int index = blockIdx.x / kProductCluster; index < problem.jobs(); index += clusters) {
    ProductJob job = problem.JobAt(index);
    job.row += rank * kTileRows;
    for (int step = 0; step < problem.steps(); ++step) {
      ring.WaitEmpty();
      if (leads) {
        const uint32_t rows = shared + ring.place * kStepBytes;
        ring.Expect(kStepBytes);
        problem.Copy({.rows = rows,
                      .half = rows + kTilePanelBytes + rank * kHalfPanelBytes,
                      .full = ring.Full(ring.place),
                      .rank = rank},
                     job, step);
      }
      ring.Next();
    }
  }
}

// The step at `rows`, queued.
template <class Problem>
__device__ inline void QueueStep(ProductSums& sums, uint32_t rows, bool first) {
  const uint64_t a = Descriptor(rows, kHalfPanelBytes);
  const uint64_t b = Descriptor(rows + kTilePanelBytes, kHalfPanelBytes);
#pragma unroll
  for (int k = 0; k < kStepDepth / 16; ++k) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const uint64_t of_a = a + (m * kHalfPanelBytes + k * 32) / 16;
      const bool add = !first || k > 0;
      if constexpr (Problem::kTurned) {
        MultiplySharedRows(sums[m], of_a, b + k * 16 * kPanelRowBytes / 16, add);
      } else {
        MultiplyShared(sums[m], of_a, b + k * 32 / 16, add);
      }
    }
  }
}

__device__ inline void ReleaseInCluster(const StepRing& ring, int place) {
  __syncwarp();
  const int lane = threadIdx.x % 32;
  if (lane < kProductCluster) ArriveAt(ring.Empty(place), lane);
  __syncwarp();
}

// Warpgroups multiply in turn; a turn ends when everything is queued.
__device__ inline void WaitForTurn(int group) { SyncBarrier(3 + group, 256); }
__device__ inline void PassTurn(int group) { PassBarrier(4 - group, 256); }

template <class Problem>
__device__ inline void SumSteps(ProductSums& sums, uint32_t shared, StepRing& ring, int steps,
                                int group) {
  WaitForTurn(group);
  int last = 0;
  for (int step = 0; step < steps; ++step) {
    ring.WaitFull();
    BeginProducts();
    QueueStep<Problem>(sums, shared + ring.place * kStepBytes, step == 0);
    CommitProducts();
    if (step > 0) {
      WaitForProducts<1>();
      ReleaseInCluster(ring, last);
    }
    last = ring.place;
    ring.Next();
  }
  PassTurn(group);
  WaitForProducts<0>();
  Settle(sums);
  ReleaseInCluster(ring, last);
}

template <class Problem>
__device__ inline void ComputeTiles(const Problem& problem, uint32_t shared, StepRing ring) {
  const int group = WarpgroupIndex(), clusters = gridDim.x / kProductCluster;
  int whose = 0;
  if (group == 1) PassTurn(group);
  for (int index = blockIdx.x / kProductCluster; index < problem.jobs(); index += clusters) {
    const bool mine = whose == group;
    whose ^= 1;
    if (!mine) {
      ring.Skip(problem.steps());
      continue;
    }
    ProductJob job = problem.JobAt(index);
    job.row += ClusterRank() * kTileRows;
    ProductSums sums;
    problem.Begin(job);
    SumSteps<Problem>(sums, shared, ring, problem.steps(), group);
    problem.Finish(job, sums);
  }
  if (whose == group) WaitForTurn(group);  // that nobody takes
}

// A kernel's whole body.
template <class Problem>
__device__ inline void RunProducts(const Problem& problem) {
  const uint32_t begin = SharedAddress(DynamicShared());
  const uint32_t shared = (begin + kProductAlignment - 1) / kProductAlignment * kProductAlignment;
  const StepRing ring{shared + kStepsBytes};
  if (threadIdx.x == 0) {
    ring.Init(4 * kProductCluster);
    PublishBarriers();
  }
  SyncCluster();
  if (WarpgroupIndex() == 2) {
    ShrinkRegisters<40>();
    if (threadIdx.x % 128 < 32) CopySteps(problem, shared, ring);
  } else {
    GrowRegisters<232>();
    ComputeTiles(problem, shared, ring);
  }
  SyncCluster();  // nobody leaves to whom the other may still copy
}

// Clusters that stay at once.
inline int ProductClusters() { return std::max(1, Processors() / kProductCluster); }
template <class Problem>
void LaunchProducts(const char* name, cudaStream_t stream, void (*kernel)(Problem),
                    const Problem& problem, int jobs) {
  const int clusters = std::min(ProductClusters(), jobs);
  LaunchClusters(name, kernel, kProductCluster * clusters, kProductCluster, kProductThreads,
                 kProductSharedBytes, stream, problem);
}

// Tiles side by side are computed one after another, kBand pairs of them deep: what they read stays
// in the L2 cache.
struct TileOrder {
  int pairs, across;  // tiles of a cluster in a column, and of these in a row

  struct Place {
    int pair, across;
  };
  __host__ __device__ int count() const { return pairs * across; }
  __device__ Place At(int index) const {
    constexpr int kBand = 8;
    const int band = index / (kBand * across) * kBand, within = index - band * across;
    const int high = min(kBand, pairs - band);
    return {band + within % high, within / high};
  }
};

// Sums leave a thread as pieces of 8 neighbours in a row, rounded.
struct RoundedPiece {
  uint32_t word[4];
};
// Before, word w is a pair of the w-th of four pieces: of four lanes each gives all others theirs.
__device__ inline void Regroup(RoundedPiece& piece) {
  const int lane = threadIdx.x % 4;
#pragma unroll
  for (int bit = 1; bit < 4; bit *= 2) {
    const bool upper = (lane & bit) != 0;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      if ((w & bit) != 0) continue;
      const uint32_t sent = upper ? piece.word[w] : piece.word[w + bit];
      const uint32_t got = __shfl_xor_sync(~0u, sent, bit);
      piece.word[w] = upper ? got : piece.word[w];
      piece.word[w + bit] = upper ? piece.word[w + bit] : got;
    }
  }
}
// Of the columns [column, column + 32) of the tile, and rows 64 m + 8 half + 16 warp + lane / 4:
// the piece that begins at column + 8 (lane mod 4).
__device__ inline RoundedPiece PieceOf(const ProductSums& sums, int m, int half, int column) {
  RoundedPiece piece;
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    const float* of = sums[m] + column / 2 + 4 * w + 2 * half;
    piece.word[w] = Halves(of[0], of[1]);
  }
  Regroup(piece);
  return piece;
}
__device__ inline int RowOfPiece(int m, int half) {
  return 64 * m + 8 * half + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
}

inline int TilesOver(int64_t size, int by) { return static_cast<int>((size + by - 1) / by); }

}  // namespace lt2::cuda
