#include "kernels/cuda/gemm_warpgroup.h"
#include "kernels/cuda/product_tiles.cuh"
#include "kernels/cuda/tensor_map.h"

namespace lt2::cuda {
namespace {

constexpr int kTileColumns = 128;
constexpr int kChunk = 32;  // columns of a box of floats

struct WeightSums {
  static constexpr bool kRowsTurned = true, kColumnsTurned = true;
  static constexpr int kPlaces = 6, kStagingBytes = kTileRows * kChunk * 4;

  CUtensorMap a, b;  // 64 rows
  CUtensorMap c;
  TileOrder order;
  int steps;
  int whole, parts;  // tiles of a cluster that are one job, and the jobs of each of the others
  int* turns;        // of the latter's blocks

  __device__ int jobs() const { return whole + (order.count() - whole) * parts; }
  __device__ ProductJob JobAt(int index) const {
    const int others = order.count() - whole;
    const bool split = index >= whole;
    const int part = split ? (index - whole) / others : 0;
    const int slot = split ? (index - whole) % others : 0;
    const TileOrder::Place at = order.At(split ? whole + slot : index);
    const int first = split ? steps * part / parts : 0;
    const int end = split ? steps * (part + 1) / parts : steps;
    return {
        at.pair * kProductCluster * kTileRows, at.across * kTileColumns, first, end - first, part,
        split && parts > 1 ? slot : -1};
  }

  __device__ void Copy(const StepPlace& to, const ProductJob& job, int step) const {
    CopyBox(to.rows, a, to.full, job.row, step * kStepDepth);
    CopyBox(to.rows + kHalfPanelBytes, a, to.full, job.row + 64, step * kStepDepth);
    CopyBoxToAll(to.half, b, to.full, job.column + to.rank * 64, step * kStepDepth, kAllRanks);
  }
  __device__ void Begin(const ProductTile&) const {}

  __device__ void Finish(const ProductTile& tile, const ProductSums& sums) const {
    int* const turn = turns + tile.job.slot * kProductCluster + ClusterRank();
    const bool leads = threadIdx.x % 128 == 0, shared = tile.job.slot >= 0;
    if (leads && shared) WaitForBlocks(turn, tile.job.part);
    __syncwarp();
    const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
    // Row 64 m + 16 warp + lane / 4 + 8 half, columns 8 j + 2 (lane mod 4) of a chunk.
    const uint32_t first =
        tile.staging + PanelOffset(kTileRows, 16 * warp + lane / 4, lane % 4 / 2) + lane % 2 * 8;
#pragma unroll
    for (int chunk = 0; chunk < kTileColumns / kChunk; ++chunk) {
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const int m = i / 8, half = i / 4 % 2, j = i % 4;
        const float* of = sums[m] + 4 * (chunk * 4 + j) + 2 * half;
        const uint32_t at = (first ^ (32 * j)) + (64 * m + 8 * half) * kPanelRowBytes;
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(of[0]), "f"(of[1])
                     : "memory");
      }
      WriteOut(tile.group,
               [&] { AddBox(c, tile.staging, tile.job.column + chunk * kChunk, tile.job.row); });
    }
    if (leads && shared) PassToBlock(turn, tile.job.part + 1 == parts ? 0 : tile.job.part + 1);
    __syncwarp();
  }
};

__global__ void __launch_bounds__(kProductThreads, 1)
    GemmWarpgroupKernel(const __grid_constant__ WeightSums problem) {
  RunProducts(problem);
}

bool Aligned(const Tensor& x, int64_t elements) {
  return x.shape().back() % elements == 0 && reinterpret_cast<uintptr_t>(x.raw()) % 16 == 0;
}

}  // namespace

bool WarpgroupsTake(const GemmArgs& args) {
  return args.transpose_a && !args.transpose_b && args.accumulate && !args.addend.defined() &&
         args.a.dtype() == DType::kBF16 && args.c.dtype() == DType::kF32 && args.c.size() > 0 &&
         Aligned(args.a, 8) && Aligned(args.b, 8) && Aligned(args.c, 4) && HasWarpgroups();
}

int WarpgroupGemmTurns() { return kProductCluster * ProductClusters(); }

void WarpgroupGemm(cudaStream_t stream, const GemmArgs& args, float* c, int* turns) {
  const auto [m, n, k] = SizesOf(args);
  const TileOrder order{.pairs = TilesOver(m, kProductCluster * kTileRows),
                        .across = TilesOver(n, kTileColumns)};
  constexpr int kMostParts = 8, kFewestSteps = 8;
  const int steps = TilesOver(k, kStepDepth), clusters = ProductClusters();
  const int others = order.count() % clusters;
  const int parts =
      others == 0 ? 1
                  : std::max(1, std::min({clusters / others, kMostParts, steps / kFewestSteps}));
  const WeightSums problem{.a = MatrixMap(args.a.raw(), k, m, 64, 64),
                           .b = MatrixMap(args.b.raw(), k, n, 64, 64),
                           .c = FloatPanelMap(c, m, n, kTileRows),
                           .order = order,
                           .steps = steps,
                           .whole = order.count() - others,
                           .parts = parts,
                           .turns = turns};
  LaunchProducts("gemm", stream, GemmWarpgroupKernel, problem,
                 problem.whole + others * problem.parts);
}

}  // namespace lt2::cuda
