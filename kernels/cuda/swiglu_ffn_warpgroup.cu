// A tile's columns are, forward, 64 of gate and the same 64 of up, so that a thread has both of an
// element; backward they are 128 of hidden. Values are rounded as they are stored before anything
// is made of them, so that hidden is the same whoever makes it.
#include "kernels/cuda/gate.cuh"
#include "kernels/cuda/product_tiles.cuh"
#include "kernels/cuda/swiglu_ffn_warpgroup.h"
#include "kernels/cuda/tensor_map.h"

namespace lt2::cuda {
namespace {

// fn(m, j, half, offset): the pair of columns 8 j + 2 (lane mod 4) of a panel in row 64 m + 8 half
// + 16 warp + lane / 4, and where it lies.
template <class Fn>
__device__ inline void ForEachPair(const Fn& fn) {
  const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
  const uint32_t first = PanelOffset(kTileRows, 16 * warp + lane / 4, 0) + lane % 4 * 4;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const uint32_t piece = first ^ (16 * j);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      fn(i / 2, j, i % 2, piece + (64 * (i / 2) + 8 * (i % 2)) * kPanelRowBytes);
    }
  }
}
__device__ inline void StoreShared(uint32_t to, uint32_t pair) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(pair) : "memory");
}
__device__ inline uint32_t LoadShared(uint32_t from) {
  uint32_t pair;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(pair) : "r"(from) : "memory");
  return pair;
}

// Pairs of a panel, [2][8][2] of them a thread, go out through the staging.
using Pairs = uint32_t[2][8][2];
__device__ inline void StorePairs(const ProductTile& tile, const CUtensorMap& map, int column,
                                  const Pairs& pairs) {
  ForEachPair([&](int m, int j, int half, uint32_t at) {
    StoreShared(tile.staging + at, pairs[m][j][half]);
  });
  WriteOut(tile.group, [&] { StoreBox(map, tile.staging, column, tile.job.row); });
}

struct Forward {
  static constexpr bool kRowsTurned = false, kColumnsTurned = false;
  static constexpr int kPlaces = 6, kStagingBytes = kTilePanelBytes, kUnits = 64;

  CUtensorMap x;
  CUtensorMap w[kProductCluster];  // 64 rows of gate's and of up's
  CUtensorMap gate, up, hidden;
  TileOrder order;
  int steps;
  bool with_hidden;

  __device__ int jobs() const { return order.count(); }
  __device__ ProductJob JobAt(int index) const {
    const TileOrder::Place at = order.At(index);
    return {at.pair * kProductCluster * kTileRows, at.across * kUnits, 0, steps};
  }
  __device__ void Copy(const StepPlace& to, const ProductJob& job, int step) const {
    CopyBox(to.rows, x, to.full, step * kStepDepth, job.row);
    CopyBoxToAll(to.half, w[to.rank], to.full, step * kStepDepth, job.column, kAllRanks);
  }
  __device__ void Begin(const ProductTile&) const {}

  __device__ void Finish(const ProductTile& tile, const ProductSums& sums) const {
    Pairs of_gate, of_up;
    ForEachPair([&](int m, int j, int half, uint32_t) {
      const float* of = sums[m] + 4 * j + 2 * half;
      of_gate[m][j][half] = Halves(of[0], of[1]);
      of_up[m][j][half] = Halves(of[32], of[33]);
    });
    StorePairs(tile, gate, tile.job.column, of_gate);
    StorePairs(tile, up, tile.job.column, of_up);
    if (!with_hidden) return;
    ForEachPair([&](int m, int j, int half, uint32_t) {
      uint32_t &g = of_gate[m][j][half], u = of_up[m][j][half];
      g = Halves(LowerHalf(u) * Swish<bf16>::Value(LowerHalf(g)),
                 UpperHalf(u) * Swish<bf16>::Value(UpperHalf(g)));
    });
    StorePairs(tile, hidden, tile.job.column, of_gate);
  }
};

struct Backward {
  static constexpr bool kRowsTurned = false, kColumnsTurned = true;
  static constexpr int kPlaces = 5, kStagingBytes = 2 * kTilePanelBytes, kUnits = 128;

  CUtensorMap dy;
  CUtensorMap w;         // 64 rows
  CUtensorMap gate, up;  // read
  CUtensorMap dgate, dup, hidden;
  TileOrder order;
  int steps;
  bool with_hidden;

  __device__ int jobs() const { return order.count(); }
  __device__ ProductJob JobAt(int index) const {
    const TileOrder::Place at = order.At(index);
    return {at.pair * kProductCluster * kTileRows, at.across * kUnits, 0, steps};
  }
  __device__ void Copy(const StepPlace& to, const ProductJob& job, int step) const {
    CopyBox(to.rows, dy, to.full, step * kStepDepth, job.row);
    CopyBoxToAll(to.half, w, to.full, job.column + to.rank * 64, step * kStepDepth, kAllRanks);
  }
  __device__ void Begin(const ProductTile& tile) const { Fetch(tile, tile.job.column); }

  __device__ void Finish(const ProductTile& tile, const ProductSums& sums) const {
    WaitForPhase(tile.read, 0);
    FinishPanel<0>(tile, tile.job.column, sums);
    Fetch(tile, tile.job.column + 64);
    WaitForPhase(tile.read, 1);
    FinishPanel<1>(tile, tile.job.column + 64, sums);
  }

  // gate and up of 64 columns, on their way to the staging.
  __device__ void Fetch(const ProductTile& tile, int column) const {
    if (threadIdx.x % 128 == 0) {
      ArriveExpecting(tile.read, 2 * kTilePanelBytes);
      CopyBox(tile.staging, gate, tile.read, column, tile.job.row);
      CopyBox(tile.staging + kTilePanelBytes, up, tile.read, column, tile.job.row);
    }
    __syncwarp();
  }

  // The gradients of gate and up where these were, then hidden.
  template <int panel>
  __device__ void FinishPanel(const ProductTile& tile, int column, const ProductSums& sums) const {
    Pairs again;
    const uint32_t of_gate = tile.staging, of_up = tile.staging + kTilePanelBytes;
    ForEachPair([&](int m, int j, int half, uint32_t at) {
      const float* of = sums[m] + 32 * panel + 4 * j + 2 * half;
      const uint32_t g = LoadShared(of_gate + at), u = LoadShared(of_up + at);
      const uint32_t d = Halves(of[0], of[1]);
      float value[2], slope[2];
      Swish<bf16>::ValueAndSlope(LowerHalf(g), value[0], slope[0]);
      Swish<bf16>::ValueAndSlope(UpperHalf(g), value[1], slope[1]);
      StoreShared(of_gate + at, Halves(LowerHalf(d) * LowerHalf(u) * slope[0],
                                       UpperHalf(d) * UpperHalf(u) * slope[1]));
      StoreShared(of_up + at, Halves(LowerHalf(d) * value[0], UpperHalf(d) * value[1]));
      again[m][j][half] = Halves(LowerHalf(u) * value[0], UpperHalf(u) * value[1]);
    });
    WriteOut(tile.group, [&] {
      StoreBox(dgate, of_gate, column, tile.job.row);
      StoreBox(dup, of_up, column, tile.job.row);
    });
    if (with_hidden) StorePairs(tile, hidden, column, again);
  }
};

template <class Problem>
__global__ void __launch_bounds__(kProductThreads, 1)
    SwiGluWarpgroupKernel(const __grid_constant__ Problem problem) {
  RunProducts(problem);
}

template <class Problem>
void Run(const Stream& stream, const Problem& problem) {
  LaunchProducts("swiglu_ffn", Handle(stream), SwiGluWarpgroupKernel<Problem>, problem,
                 problem.order.count());
}

CUtensorMap MapOf(const Tensor& x, int rows = kTileRows) {
  return MatrixMap(Data<bf16>(x), x.shape().rows(), x.shape().back(), rows, 64);
}

TileOrder OrderOf(const Tensor& x, int units_of_tile) {
  return {.pairs = TilesOver(x.shape().rows(), kProductCluster * kTileRows),
          .across = TilesOver(x.shape().back(), units_of_tile)};
}

bool Suit(std::initializer_list<Tensor> tensors) {
  if (!HasWarpgroups()) return false;
  for (const Tensor& x : tensors) {
    if (!x.defined()) continue;
    const Shape& shape = x.shape();
    if (x.dtype() != DType::kBF16 || shape.rows() == 0 || shape.back() == 0 ||
        shape.back() % 8 != 0 || reinterpret_cast<uintptr_t>(x.raw()) % 16 != 0) {
      return false;
    }
  }
  return true;
}

}  // namespace

bool WarpgroupsTake(const SwiGluFfnForwardArgs& args) {
  return Suit({args.x, args.w_gate, args.w_up, args.gate, args.up, args.hidden});
}
bool WarpgroupsTake(const SwiGluFfnBackwardArgs& args) {
  return Suit({args.dy, args.w_down, args.gate, args.up, args.dgate, args.dup, args.hidden});
}

void WarpgroupSwiGluFfn(const Stream& stream, const SwiGluFfnForwardArgs& args) {
  const bool with_hidden = args.hidden.defined();
  Run(stream, Forward{.x = MapOf(args.x),
                      .w = {MapOf(args.w_gate, 64), MapOf(args.w_up, 64)},
                      .gate = MapOf(args.gate),
                      .up = MapOf(args.up),
                      .hidden = MapOf(with_hidden ? args.hidden : args.gate),
                      .order = OrderOf(args.gate, Forward::kUnits),
                      .steps = TilesOver(args.x.shape().back(), kStepDepth),
                      .with_hidden = with_hidden});
}

void WarpgroupSwiGluFfn(const Stream& stream, const SwiGluFfnBackwardArgs& args) {
  const bool with_hidden = args.hidden.defined();
  Run(stream, Backward{.dy = MapOf(args.dy),
                       .w = MapOf(args.w_down, 64),
                       .gate = MapOf(args.gate),
                       .up = MapOf(args.up),
                       .dgate = MapOf(args.dgate),
                       .dup = MapOf(args.dup),
                       .hidden = MapOf(with_hidden ? args.hidden : args.dgate),
                       .order = OrderOf(args.gate, Backward::kUnits),
                       .steps = TilesOver(args.dy.shape().back(), kStepDepth),
                       .with_hidden = with_hidden});
}

}  // namespace lt2::cuda
