// Each warpgroup of a block computes a tile of 128 x 128 by itself, the two of them by turns: while
// one multiplies, the other takes its sums through the gate and writes them. A warp copies operands
// ahead; of the two blocks of a cluster, which have 128 rows each and the same columns, each copies
// half of the columns' operand for both.
//
// A tile's columns are, forward, 64 of gate and the same 64 of up, so that a thread has both of an
// element; backward they are 128 of hidden.
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/gate.cuh"
#include "kernels/cuda/swiglu_ffn_warpgroup.h"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/warpgroup.cuh"

namespace lt2::cuda {
namespace {

constexpr int kRows = 128, kDepth = 64;              // of a tile, and of a step
constexpr int kPanelBytes = kRows * kPanelRowBytes;  // 128 rows of 64 columns
constexpr int kHalfBytes = kPanelBytes / 2;
constexpr int kStepBytes = 2 * kPanelBytes;
constexpr int kCluster = 2, kThreads = 3 * 128, kAlignment = 1024;

// Boxes of 128 rows and 64 columns where nothing else is said.
struct ForwardMaps {
  CUtensorMap x;
  CUtensorMap w[2];  // 64 rows of gate's and of up's
  CUtensorMap gate, up, hidden;
};
struct BackwardMaps {
  CUtensorMap dy;
  CUtensorMap w;         // 64 rows
  CUtensorMap gate, up;  // read
  CUtensorMap dgate, dup, hidden;
};

// Tiles side by side are computed one after another, `kBand` pairs of them deep: what they read
// stays in the L2 cache.
struct Tiling {
  int pairs, across, steps;  // of rows, of columns, and how deep a product is
  bool hidden;               // whether it is wanted

  struct Place {
    int pair, across;
  };
  __device__ int count() const { return pairs * across; }
  __device__ Place At(int index) const {
    constexpr int kBand = 8;
    const int band = index / (kBand * across) * kBand, within = index - band * across;
    const int high = min(kBand, pairs - band);
    return {band + within % high, within / high};
  }
};

template <class Maps>
struct Launch {
  Maps maps;
  Tiling tiling;
};

// Shared memory of a block: steps of operands, what each warpgroup writes from, barriers.
template <class Maps>
struct Layout {
  static constexpr bool kForward = std::is_same_v<Maps, ForwardMaps>;
  static constexpr int kUnits = kForward ? 64 : 128;  // of hidden, in a tile
  static constexpr int kPlaces = kForward ? 6 : 5;
  static constexpr int kStagingBytes = (kForward ? 1 : 2) * kPanelBytes;
  static constexpr int kStagingAt = kPlaces * kStepBytes;
  static constexpr int kBarriersAt = kStagingAt + 2 * kStagingBytes;
  static constexpr int kReadAt = kBarriersAt + Ring<kPlaces>::kBytes;
  static constexpr int kSharedBytes = kReadAt + 2 * kBarrierBytes + kAlignment;
};

using Sums = float[2][64];  // of a thread: rows of 64 of the tile, columns as of a product

template <class Maps>
__device__ inline void CopyAhead(const Launch<Maps>& args, uint32_t shared,
                                 Ring<Layout<Maps>::kPlaces> ring) {
  using Tile = Layout<Maps>;
  const bool leads = threadIdx.x % 32 == 0;
  const int rank = ClusterRank(), clusters = gridDim.x / kCluster;
  for (int index = blockIdx.x / kCluster; index < args.tiling.count(); index += clusters) {
    const Tiling::Place place = args.tiling.At(index);
    const int row = (place.pair * kCluster + rank) * kRows, unit = place.across * Tile::kUnits;
    for (int step = 0; step < args.tiling.steps; ++step) {
      ring.WaitEmpty();
      if (leads) {
        const uint32_t rows = shared + ring.place * kStepBytes;
        const uint32_t half = rows + kPanelBytes + rank * kHalfBytes;
        const uint32_t full = ring.Full(ring.place), all = (1 << kCluster) - 1;
        ring.Expect(kStepBytes);
        if constexpr (Tile::kForward) {
          CopyBox(rows, args.maps.x, full, step * kDepth, row);
          CopyBoxToAll(half, args.maps.w[rank], full, step * kDepth, unit, all);
        } else {
          CopyBox(rows, args.maps.dy, full, step * kDepth, row);
          CopyBoxToAll(half, args.maps.w, full, unit + rank * 64, step * kDepth, all);
        }
      }
      ring.Next();
    }
  }
}

// The step at `rows`, queued.
template <bool kForward>
__device__ inline void QueueStep(Sums& sums, uint32_t rows, bool first) {
  const uint64_t a = Descriptor(rows, 16), b = Descriptor(rows + kPanelBytes, kHalfBytes);
#pragma unroll
  for (int k = 0; k < kDepth / 16; ++k) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const uint64_t of_a = a + (m * kHalfBytes + k * 32) / 16;
      const bool add = !first || k > 0;
      if constexpr (kForward) {
        MultiplyShared(sums[m], of_a, b + k * 32 / 16, add);
      } else {
        MultiplySharedRows(sums[m], of_a, b + k * 16 * kPanelRowBytes / 16, add);
      }
    }
  }
}

template <int kPlaces>
__device__ inline void ReleaseInCluster(const Ring<kPlaces>& ring, int place) {
  __syncwarp();
  const int lane = threadIdx.x % 32;
  if (lane < kCluster) ArriveAt(ring.Empty(place), lane);
  __syncwarp();
}

// Warpgroups multiply in turn; a turn ends when everything is queued.
__device__ inline void WaitForTurn(int group) { SyncBarrier(3 + group, 256); }
__device__ inline void PassTurn(int group) { PassBarrier(4 - group, 256); }

template <bool kForward, int kPlaces>
__device__ inline void Multiply(Sums& sums, uint32_t shared, Ring<kPlaces>& ring, int steps,
                                int group) {
  WaitForTurn(group);
  int last = 0;
  for (int step = 0; step < steps; ++step) {
    ring.WaitFull();
    BeginProducts();
    QueueStep<kForward>(sums, shared + ring.place * kStepBytes, step == 0);
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

// fn(m, j, half, offset): the pair of columns 8 j + 2 (lane mod 4) of a panel in row 64 m + 8 half
// + 16 warp + lane / 4, and where it lies.
template <class Fn>
__device__ inline void ForEachPair(const Fn& fn) {
  const int warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
  const uint32_t first = PanelOffset(kRows, 16 * warp + lane / 4, 0) + lane % 4 * 4;
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

struct Output {
  uint32_t staging;
  int group, row, unit;
};

__device__ inline void Finish(const Launch<ForwardMaps>& args, const Output& to, const Sums& sums) {
  uint32_t gate[2][8][2], up[2][8][2];
  const auto write = [&](const CUtensorMap& map) {
    WriteOut(to.group, [&] { StoreBox(map, to.staging, to.unit, to.row); });
  };
  ForEachPair([&](int m, int j, int half, uint32_t at) {
    const float* of = sums[m] + 4 * j + 2 * half;
    gate[m][j][half] = Halves(of[0], of[1]);
    up[m][j][half] = Halves(of[32], of[33]);
    StoreShared(to.staging + at, gate[m][j][half]);
  });
  write(args.maps.gate);
  ForEachPair(
      [&](int m, int j, int half, uint32_t at) { StoreShared(to.staging + at, up[m][j][half]); });
  write(args.maps.up);
  if (!args.tiling.hidden) return;
  ForEachPair([&](int m, int j, int half, uint32_t at) {
    const uint32_t g = gate[m][j][half], u = up[m][j][half];
    StoreShared(to.staging + at, Halves(LowerHalf(u) * Swish<bf16>::Value(LowerHalf(g)),
                                        UpperHalf(u) * Swish<bf16>::Value(UpperHalf(g))));
  });
  write(args.maps.hidden);
}

// gate and up of 64 columns, on their way to the staging.
__device__ inline void Fetch(const Launch<BackwardMaps>& args, const Output& to, uint32_t barrier) {
  if (threadIdx.x % 128 == 0) {
    ArriveExpecting(barrier, 2 * kPanelBytes);
    CopyBox(to.staging, args.maps.gate, barrier, to.unit, to.row);
    CopyBox(to.staging + kPanelBytes, args.maps.up, barrier, to.unit, to.row);
  }
  __syncwarp();
}

// The gradients of gate and up where these were, then hidden. sums: 64 columns of dhidden.
template <int panel>
__device__ inline void FinishPanel(const Launch<BackwardMaps>& args, const Output& to,
                                   const Sums& sums) {
  uint32_t hidden[2][8][2];
  const uint32_t of_gate = to.staging, of_up = to.staging + kPanelBytes;
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
    hidden[m][j][half] = Halves(LowerHalf(u) * value[0], UpperHalf(u) * value[1]);
  });
  WriteOut(to.group, [&] {
    StoreBox(args.maps.dgate, of_gate, to.unit, to.row);
    StoreBox(args.maps.dup, of_up, to.unit, to.row);
  });
  if (!args.tiling.hidden) return;
  ForEachPair(
      [&](int m, int j, int half, uint32_t at) { StoreShared(of_gate + at, hidden[m][j][half]); });
  WriteOut(to.group, [&] { StoreBox(args.maps.hidden, of_gate, to.unit, to.row); });
}

template <class Maps>
__device__ inline void Compute(const Launch<Maps>& args, uint32_t shared,
                               Ring<Layout<Maps>::kPlaces> ring) {
  using Tile = Layout<Maps>;
  const int group = WarpgroupIndex(), clusters = gridDim.x / kCluster, steps = args.tiling.steps;
  const uint32_t read = shared + Tile::kReadAt + group * kBarrierBytes;
  Output to{.staging = shared + Tile::kStagingAt + group * Tile::kStagingBytes, .group = group};
  int whose = 0;
  if (group == 1) PassTurn(group);
  for (int index = blockIdx.x / kCluster; index < args.tiling.count(); index += clusters) {
    const bool mine = whose == group;
    whose ^= 1;
    if (!mine) {
      ring.Skip(steps);
      continue;
    }
    const Tiling::Place place = args.tiling.At(index);
    to.row = (place.pair * kCluster + ClusterRank()) * kRows;
    to.unit = place.across * Tile::kUnits;
    Sums sums;
    if constexpr (Tile::kForward) {
      Multiply<true>(sums, shared, ring, steps, group);
      Finish(args, to, sums);
    } else {
      Fetch(args, to, read);
      Multiply<false>(sums, shared, ring, steps, group);
      WaitForPhase(read, 0);
      FinishPanel<0>(args, to, sums);
      to.unit += 64;
      Fetch(args, to, read);
      WaitForPhase(read, 1);
      FinishPanel<1>(args, to, sums);
    }
  }
  if (whose == group) WaitForTurn(group);  // that nobody takes
}

template <class Maps>
__global__ void __launch_bounds__(kThreads, 1)
    SwiGluWarpgroupKernel(const __grid_constant__ Launch<Maps> args) {
  using Tile = Layout<Maps>;
  const uint32_t begin = SharedAddress(DynamicShared());
  const uint32_t shared = (begin + kAlignment - 1) / kAlignment * kAlignment;
  const Ring<Tile::kPlaces> ring{shared + Tile::kBarriersAt};
  if (threadIdx.x == 0) {
    ring.Init(4 * kCluster);
    for (int group = 0; group < 2; ++group) {
      InitBarrier(shared + Tile::kReadAt + group * kBarrierBytes, 1);
    }
    PublishBarriers();
  }
  SyncCluster();
  if (WarpgroupIndex() == 2) {
    ShrinkRegisters<40>();
    if (threadIdx.x % 128 < 32) CopyAhead<Maps>(args, shared, ring);
  } else {
    GrowRegisters<232>();
    Compute<Maps>(args, shared, ring);
  }
  SyncCluster();  // nobody leaves to whom the other may still copy
}

template <class Maps>
void Run(const Stream& stream, const Launch<Maps>& args) {
  int device = 0, processors = 0;
  LT2_CUDA_CHECK(cudaGetDevice(&device));
  LT2_CUDA_CHECK(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
  const int clusters = std::min(processors / kCluster, args.tiling.pairs * args.tiling.across);
  LaunchClusters("swiglu_ffn", SwiGluWarpgroupKernel<Maps>, kCluster * clusters, kCluster, kThreads,
                 Layout<Maps>::kSharedBytes, Handle(stream), args);
}

int Over(int64_t size, int by) { return static_cast<int>((size + by - 1) / by); }

Tiling TilingOf(int64_t rows, int64_t units, int of_tile, int64_t depth, const Tensor& hidden) {
  return {.pairs = Over(rows, kCluster * kRows),
          .across = Over(units, of_tile),
          .steps = Over(depth, kDepth),
          .hidden = hidden.defined()};
}

CUtensorMap MapOf(const Tensor& x, int rows) {
  return MatrixMap(Data<bf16>(x), x.shape().rows(), x.shape().back(), rows, 64);
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
  const Tensor& hidden = args.hidden.defined() ? args.hidden : args.gate;
  Run<ForwardMaps>(stream, {.maps = {.x = MapOf(args.x, kRows),
                                     .w = {MapOf(args.w_gate, 64), MapOf(args.w_up, 64)},
                                     .gate = MapOf(args.gate, kRows),
                                     .up = MapOf(args.up, kRows),
                                     .hidden = MapOf(hidden, kRows)},
                            .tiling = TilingOf(args.x.shape().rows(), args.gate.shape().back(),
                                               Layout<ForwardMaps>::kUnits, args.x.shape().back(),
                                               args.hidden)});
}

void WarpgroupSwiGluFfn(const Stream& stream, const SwiGluFfnBackwardArgs& args) {
  const Tensor& hidden = args.hidden.defined() ? args.hidden : args.dgate;
  Run<BackwardMaps>(stream, {.maps = {.dy = MapOf(args.dy, kRows),
                                      .w = MapOf(args.w_down, 64),
                                      .gate = MapOf(args.gate, kRows),
                                      .up = MapOf(args.up, kRows),
                                      .dgate = MapOf(args.dgate, kRows),
                                      .dup = MapOf(args.dup, kRows),
                                      .hidden = MapOf(hidden, kRows)},
                             .tiling = TilingOf(args.dy.shape().rows(), args.gate.shape().back(),
                                                Layout<BackwardMaps>::kUnits,
                                                args.dy.shape().back(), args.hidden)});
}

}  // namespace lt2::cuda
