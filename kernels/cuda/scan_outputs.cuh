// What a chunk makes of the state it begins with, or ends with, and of its values: all chunks at
// once.
//
//   kRead         o = q_read S + P u
//   kNormalised   [num, den] = q_read S + P [v, 1],  o = num / max(|den|, floor)
//   kTransposed   dv = k_write dS + P^T dO
#pragma once

#include "kernels/cuda/scan_states.cuh"
#include "kernels/cuda/warp_tiles.cuh"

namespace lt2::cuda {

enum class Outputs { kRead, kNormalised, kTransposed };

template <class T>
struct ChunkOutputs {
  ScanShape shape;
  const T *rows, *attention;  // of ScanOperands; rows null: read_scale times those of q_NHK
  const T* states_CGKV;
  ValueRows<T> values;
  T* o_NGV;
  bool add = false;
  const float* floor = nullptr;  // [items, 64]
  float* den_NG = nullptr;       // may be null
  const T* q_NHK = nullptr;
  const float* read_scale = nullptr;  // [items, 64]
};

// Of row threadIdx.x / 4 of two matrices' product, the share of one in four inner indices.
template <class T>
__device__ inline float DenominatorShare(const T* panel, int inner, const auto& right) {
  float sum = 0;
  for (int c = threadIdx.x % 4; c < inner; c += 4) {
    sum += Get(panel, threadIdx.x / 4 * kPanelStride<T> + c) * right(c);
  }
  return sum;
}

template <class T, Outputs kOutputs>
__global__ void __launch_bounds__(kPanelThreads) ChunkOutputsKernel(ChunkOutputs<T> data) {
  __shared__ float inverse[kPanel];
  const ScanShape& n = data.shape;
  const int chunk = blockIdx.x, head = blockIdx.y, begin = blockIdx.z * kPanel;
  const ChunkPlace place = PlaceOf(n.chunks, chunk);
  if (place.rows == 0) return;
  const int64_t item = int64_t{chunk} * n.heads + head;
  const int padded = PaddedWidth(n.k);
  T* p_panel = reinterpret_cast<T*>(DynamicShared());
  T *value_panel = p_panel + kPanelSize<T>, *row_panel = value_panel + kPanelSize<T>;
  T* state_panel = row_panel + kPanelSize<T>;
  LoadPanel(p_panel, data.attention + item * kPanel * kPanel, kPanel, kPanel, kPanel);
  data.values.Load(value_panel, place, item, begin);
  Accumulator o;
  float den = 0;
  for (int p = 0; p < PanelsOf(n.k); ++p) {
    const T* states = data.states_CGKV + (item * n.k + p * kPanel) * n.width;
    LoadPanel(row_panel, data.rows + item * kPanel * padded + p * kPanel, padded, kPanel,
              PanelColumns(padded, p));
    LoadPanel(state_panel, states + begin, n.width, n.k - p * kPanel, n.width - begin);
    __syncthreads();
    Multiply<false, false>(o, row_panel, state_panel, 0, PanelColumns(padded, p));
    if constexpr (kOutputs == Outputs::kNormalised) {
      den += DenominatorShare(row_panel, min(kPanel, n.k - p * kPanel),
                              [&](int c) { return Get(states, int64_t{c} * n.width + n.v); });
    }
    __syncthreads();
  }
  Multiply<kOutputs == Outputs::kTransposed, false>(o, p_panel, value_panel, 0, kPanel);
  if constexpr (kOutputs == Outputs::kNormalised) {
    den += DenominatorShare(p_panel, place.rows, [](int) { return 1.0f; });
    den += __shfl_xor_sync(~0u, den, 1);
    den += __shfl_xor_sync(~0u, den, 2);
    const int r = threadIdx.x / 4;
    if (threadIdx.x % 4 == 0) {
      inverse[r] = 1 / fmaxf(fabsf(den), data.floor[item * kPanel + r]);
      if (data.den_NG != nullptr && begin == 0 && r < place.rows) {
        data.den_NG[int64_t{place.token + r} * n.heads + head] = den;
      }
    }
    __syncthreads();
  }
  ForEachPair(o, [&](int r, int c, float x, float y) {
    const float factor = kOutputs == Outputs::kNormalised ? inverse[r] : 1;
    PutPair(row_panel, r, c, factor * x, factor * y);
  });
  __syncthreads();
  StorePanel(row_panel, data.o_NGV + (int64_t{place.token} * n.heads + head) * n.v + begin,
             int64_t{n.heads} * n.v, place.rows, n.v - begin, data.add);
}

// The same in bf16, but for kNormalised: a block of four warps, 16 rows each, asks at once for all
// that 32 kGroups columns need.
inline constexpr int kOutputThreads = 128;

template <Outputs kOutputs, int kGroups>
__global__ void __launch_bounds__(kOutputThreads, 4)
    ChunkOutputsTiles(const __grid_constant__ ChunkOutputs<bf16> data) {
  constexpr int kColumns = kGroups * kTileColumns;
  const ScanShape& n = data.shape;
  const int begin = blockIdx.x * kColumns, head = blockIdx.y;
  const int64_t item = int64_t{blockIdx.z} * n.heads + head;
  const ChunkPlace place = PlaceOf(n.chunks, blockIdx.z);
  if (place.rows == 0) return;
  const int padded = PaddedWidth(n.k), columns = min(kColumns, n.v - begin);
  auto* free = reinterpret_cast<bf16*>(DynamicShared());
  const auto take = [&](int rows, int width) {
    const Tile tile = {free, TileStride(width)};
    free = tile.Row(rows);
    return tile;
  };
  const Tile rows = take(kPanel, n.k), states = take(padded, kColumns);
  const Tile attention = take(kPanel, kPanel), values = take(kPanel, kColumns);
  if (data.rows != nullptr) {
    FetchTile<kOutputThreads>(rows, kPanel, data.rows + item * kPanel * padded, padded, kPanel,
                              padded);
  } else {
    const int key_head = n.heads == n.key_heads ? head : head / (n.heads / n.key_heads);
    const int64_t at = int64_t{place.token} * n.key_heads + key_head;
    FetchTile<kOutputThreads>(rows, kPanel, data.q_NHK + at * n.k, int64_t{n.key_heads} * n.k,
                              place.rows, n.k);
  }
  FetchTile<kOutputThreads>(states, padded, data.states_CGKV + item * n.k * n.v + begin, n.v, n.k,
                            columns);
  FetchTile<kOutputThreads>(attention, kPanel, data.attention + item * kPanel * kPanel, kPanel,
                            kPanel, kPanel);
  const int64_t at_head = (int64_t{place.token} * n.heads + head) * n.v + begin;
  const int64_t stride = int64_t{n.heads} * n.v;
  const bf16* from = data.values.x_NGV;
  FetchTile<kOutputThreads>(values, kPanel, from == nullptr ? nullptr : from + at_head, stride,
                            place.rows, columns);
  WaitForCopies();
  __syncthreads();

  // What a tile costs depends on its number: schedulers take turns.
  const int tile = (__shfl_sync(~0u, threadIdx.x / 32, 0) + blockIdx.x + blockIdx.y) % kTiles;
  const int lane = threadIdx.x % 32;
  float sums[4 * kGroups][4] = {};
  uint32_t a[4];
  for (int c = 0; c < padded; c += 16) {
    LoadLeft(a, rows, tile * kTile, c);
#pragma unroll
    for (int i = 0; i < kGroups; ++i) MultiplyAdd32(sums + 4 * i, a, states, c, i * kTileColumns);
  }
  if (data.rows == nullptr) {
    const float* scale = data.read_scale + item * kPanel + tile * kTile + lane / 4;
    const float low = scale[0], high = scale[8];
#pragma unroll
    for (auto& sum : sums) sum[0] *= low, sum[1] *= low, sum[2] *= high, sum[3] *= high;
  }
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    if (kOutputs == Outputs::kTransposed ? t < tile : t > tile) continue;
    if constexpr (kOutputs == Outputs::kTransposed) {
      LoadLeftTransposed(a, attention, tile * kTile, t * kTile);
    } else {
      LoadLeft(a, attention, tile * kTile, t * kTile);
    }
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      MultiplyAdd32(sums + 4 * i, a, values, t * kTile, i * kTileColumns);
    }
  }
#pragma unroll
  for (int i = 0; i < kGroups; ++i) {
    ForEachEight(sums + 4 * i, [&](int r, int c, const uint4& eight) {
      const int row = tile * kTile + r, column = i * kTileColumns + c;
      if (row >= place.rows || column >= columns) return;
      StoreEight(data.o_NGV + at_head + row * stride + column, eight, data.add);
    });
  }
}

template <class T, Outputs kOutputs>
bool FitsOutputsTiles(const ChunkOutputs<T>& data) {
  const ScanShape& n = data.shape;
  const auto aligned = [](const void* x) { return reinterpret_cast<uintptr_t>(x) % 16 == 0; };
  return std::is_same_v<T, bf16> && kOutputs != Outputs::kNormalised && n.width == n.v &&
         !data.values.widened && data.values.scale == nullptr && n.k % 8 == 0 && n.v % 8 == 0 &&
         aligned(data.values.x_NGV) && aligned(data.states_CGKV) && aligned(data.o_NGV) &&
         aligned(data.q_NHK);
}

template <Outputs kOutputs, int kGroups>
void LaunchChunkOutputsTiles(const Stream& stream, const ChunkOutputs<bf16>& data, int64_t chunks) {
  constexpr int kColumns = kGroups * kTileColumns;
  const ScanShape& n = data.shape;
  const int slices = (n.v + kColumns - 1) / kColumns;
  const int rows = kPanel * (TileStride(n.k) + TileStride(kPanel) + TileStride(kColumns));
  const int shared = (rows + PaddedWidth(n.k) * TileStride(kColumns)) * int{sizeof(bf16)};
  const auto kernel = ChunkOutputsTiles<kOutputs, kGroups>;
  AllowShared(kernel, shared);
  const dim3 grid(slices, n.heads, static_cast<unsigned>(chunks));
  kernel<<<grid, kOutputThreads, shared, Handle(stream)>>>(data);
}

template <class T, Outputs kOutputs>
void LaunchChunkOutputs(const Stream& stream, const char* name, const ChunkOutputs<T>& data,
                        int64_t chunks) {
  const ScanShape& n = data.shape;
  if constexpr (std::is_same_v<T, bf16> && kOutputs != Outputs::kNormalised) {
    if (FitsOutputsTiles<T, kOutputs>(data)) {
      if (TileWidth(n.v) % (3 * kTileColumns) == 0) {
        LaunchChunkOutputsTiles<kOutputs, 3>(stream, data, chunks);
      } else {
        LaunchChunkOutputsTiles<kOutputs, 2>(stream, data, chunks);
      }
      return CheckLaunch(name);
    }
  }
  const dim3 grid(static_cast<unsigned>(chunks), n.heads, PanelsOf(n.v));
  const int64_t shared = 4 * kPanelSize<T> * static_cast<int64_t>(sizeof(T));
  const auto kernel = ChunkOutputsKernel<T, kOutputs>;
  AllowShared(kernel, shared);
  kernel<<<grid, kPanelThreads, shared, Handle(stream)>>>(data);
  CheckLaunch(name);
}

}  // namespace lt2::cuda
