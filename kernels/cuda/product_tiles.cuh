// Matrix products of bf16 by blocks of two warpgroups that compute and one that copies (Hopper).
//
// Each warpgroup computes a tile of 128 x 128 by itself, the two of them by turns: while one
// multiplies, the other does with its sums what they are for. A warp copies operands ahead; of the
// two blocks of a cluster, which have 128 rows each and the same columns, each copies half of the
// columns' operand for both. Blocks stay and take one job after another.
//
// A Problem says what the jobs are, how operands are copied, and what becomes of the sums:
//   kRowsTurned, kColumnsTurned: whether an operand's steps are 64 rows k of 128 (two panels of 64
//     columns) or 128 rows of 64 k
//   kPlaces: steps on their way; kStagingBytes of a warpgroup, for what it writes
//   int jobs(), ProductJob JobAt(int index)
//   void Copy(const StepPlace&, const ProductJob&, int step): one thread; rows' operand of its own
//     block, its half of the columns' to all
//   void Begin(const ProductTile&): before the products; void Finish(const ProductTile&, sums)
#pragma once

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/warpgroup.cuh"

namespace lt2::cuda {

inline constexpr int kTileRows = 128, kStepDepth = 64;  // of a tile; of a step into the product
inline constexpr int kTilePanelBytes = kTileRows * kPanelRowBytes;  // 128 rows of 64 columns
inline constexpr int kHalfPanelBytes = kTilePanelBytes / 2;
inline constexpr int kStepBytes = 2 * kTilePanelBytes;
inline constexpr int kProductCluster = 2, kProductThreads = 3 * 128, kProductAlignment = 1024;
inline constexpr uint32_t kAllRanks = (1 << kProductCluster) - 1;

// Sums over steps [first, first + steps) of a cluster's tiles, whose rows begin at `row`. Where
// several jobs share these tiles, this is number `part`, and they take turns at `slot`.
struct ProductJob {
  int row, column, first, steps, part = 0, slot = -1;
};
// Where a step goes: the block's own rows, and its half of the columns; `full` counts bytes.
struct StepPlace {
  uint32_t rows, half, full;
  int rank;
};
// What a warpgroup works on.
struct ProductTile {
  ProductJob job;          // `row` is this block's
  int group;               // of the block's two that compute
  uint32_t staging, read;  // shared memory, and a barrier, of its own
};

// Of a thread: rows of 64 of the tile, columns as of a product.
using ProductSums = float[2][64];

template <class Problem>
struct ProductLayout {
  static constexpr int kStagingAt = Problem::kPlaces * kStepBytes;
  static constexpr int kBarriersAt = kStagingAt + 2 * Problem::kStagingBytes;
  static constexpr int kReadAt = kBarriersAt + Ring<Problem::kPlaces>::kBytes;
  static constexpr int kSharedBytes = kReadAt + 2 * kBarrierBytes + kProductAlignment;
};

template <class Problem, int kPlaces>
__device__ inline void CopySteps(const Problem& problem, uint32_t shared, Ring<kPlaces> ring) {
  const bool leads = threadIdx.x % 32 == 0;
  const int rank = ClusterRank(), clusters = gridDim.x / kProductCluster;
  for (int index = blockIdx.x / kProductCluster; index < problem.jobs(); index += clusters) {
    ProductJob job = problem.JobAt(index);
    job.row += rank * kTileRows;
    for (int step = job.first; step < job.first + job.steps; ++step) {
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
  constexpr int kTurned = 16 * kPanelRowBytes / 16,
                kStraight = 32 / 16;  // of 16 k, in a descriptor
#pragma unroll
  for (int k = 0; k < kStepDepth / 16; ++k) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const uint64_t of_a =
          a + m * kHalfPanelBytes / 16 + k * (Problem::kRowsTurned ? kTurned : kStraight);
      const uint64_t of_b = b + k * (Problem::kColumnsTurned ? kTurned : kStraight);
      const bool add = !first || k > 0;
      if constexpr (!Problem::kColumnsTurned) {
        static_assert(!Problem::kRowsTurned);
        MultiplyShared(sums[m], of_a, of_b, add);
      } else if constexpr (!Problem::kRowsTurned) {
        MultiplySharedRows(sums[m], of_a, of_b, add);
      } else {
        MultiplyTransposed(sums[m], of_a, of_b, add);
      }
    }
  }
}

template <int kPlaces>
__device__ inline void ReleaseInCluster(const Ring<kPlaces>& ring, int place) {
  __syncwarp();
  const int lane = threadIdx.x % 32;
  if (lane < kProductCluster) ArriveAt(ring.Empty(place), lane);
  __syncwarp();
}

// Warpgroups multiply in turn; a turn ends when everything is queued.
__device__ inline void WaitForTurn(int group) { SyncBarrier(3 + group, 256); }
__device__ inline void PassTurn(int group) { PassBarrier(4 - group, 256); }

template <class Problem, int kPlaces>
__device__ inline void SumSteps(ProductSums& sums, uint32_t shared, Ring<kPlaces>& ring, int steps,
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

template <class Problem, int kPlaces>
__device__ inline void ComputeTiles(const Problem& problem, uint32_t shared, Ring<kPlaces> ring) {
  const int group = WarpgroupIndex(), clusters = gridDim.x / kProductCluster;
  ProductTile tile{
      .job = {},
      .group = group,
      .staging = shared + ProductLayout<Problem>::kStagingAt + group * Problem::kStagingBytes,
      .read = shared + ProductLayout<Problem>::kReadAt + group * kBarrierBytes};
  int whose = 0;
  if (group == 1) PassTurn(group);
  for (int index = blockIdx.x / kProductCluster; index < problem.jobs(); index += clusters) {
    const bool mine = whose == group;
    whose ^= 1;
    tile.job = problem.JobAt(index);
    if (!mine) {
      ring.Skip(tile.job.steps);
      continue;
    }
    tile.job.row += ClusterRank() * kTileRows;
    ProductSums sums;
    problem.Begin(tile);
    SumSteps<Problem>(sums, shared, ring, tile.job.steps, group);
    problem.Finish(tile, sums);
  }
  if (whose == group) WaitForTurn(group);  // that nobody takes
}

// A kernel's whole body.
template <class Problem>
__device__ inline void RunProducts(const Problem& problem) {
  using Layout = ProductLayout<Problem>;
  const uint32_t begin = SharedAddress(DynamicShared());
  const uint32_t shared = (begin + kProductAlignment - 1) / kProductAlignment * kProductAlignment;
  const Ring<Problem::kPlaces> ring{shared + Layout::kBarriersAt};
  if (threadIdx.x == 0) {
    ring.Init(4 * kProductCluster);
    for (int group = 0; group < 2; ++group) {
      InitBarrier(shared + Layout::kReadAt + group * kBarrierBytes, 1);
    }
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
inline int ProductClusters() {
  int device = 0, processors = 0;
  LT2_CUDA_CHECK(cudaGetDevice(&device));
  LT2_CUDA_CHECK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  return std::max(1, processors / kProductCluster);
}
template <class Problem>
void LaunchProducts(const char* name, cudaStream_t stream, void (*kernel)(Problem),
                    const Problem& problem, int jobs) {
  const int clusters = std::min(ProductClusters(), jobs);
  LaunchClusters(name, kernel, kProductCluster * clusters, kProductCluster, kProductThreads,
                 ProductLayout<Problem>::kSharedBytes, stream, problem);
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

// By a whole warpgroup whose threads have written: store() by one of them, until it has been read.
template <class Store>
__device__ inline void WriteOut(int group, const Store& store) {
  PublishShared();
  SynchronizeWarpgroup(group);
  if (threadIdx.x % 128 == 0) {
    store();
    FinishStores();
  }
  __syncwarp();
  SynchronizeWarpgroup(group);
}

inline int TilesOver(int64_t size, int by) { return static_cast<int>((size + by - 1) / by); }

}  // namespace lt2::cuda
