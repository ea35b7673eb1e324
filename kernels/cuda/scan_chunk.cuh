// What the scans' kernels share: a chunk's place, the decays of its rows, tiles of its values, and
// one allocation of scratch.
#pragma once

#include "kernels/cuda/panel.cuh"
#include "kernels/cuda/scratch.h"
#include "kernels/documents.h"
#include "kernels/gpu_limits.h"
#include "kernels/scan.h"

namespace lt2::cuda {

static_assert(kChunk == kPanel);
inline constexpr int kMostPanels = 4;  // of a key's width
// A chunk's rows in tiles, as the tensor cores take them.
inline constexpr int kTile = 16, kTiles = kPanel / kTile;

struct ChunkPlace {
  int document, token, rows;  // 0 rows: no such chunk
};
__device__ inline ChunkPlace PlaceOf(const int32_t* chunks, int chunk) {
  return {chunks[3 * chunk], chunks[3 * chunk + 1], chunks[3 * chunk + 2]};
}

// One log-decay per row of a chunk, and the factors that follow from it: with G_r the sum of the
// decays up to row r, exp(G_r), exp(G_C - G_r), exp(G_C) and, between rows, exp(G_r - G_j). Rows
// past the chunk's end do not decay. scan_mlstm_weights.cuh has the same for its gates.
struct RowWeights {
  // In double: differences of large sums stay exact.
  double of_row[kPanel], of_column[kPanel];  // exp(of_row[r] - of_column[j]), j <= r
  float from_start[kPanel], to_end[kPanel];
  float whole;

  // g: a head's, `stride` apart; null: `constant` a row. Work of the first warp alone.
  template <class T>
  __device__ void Load(const float* g, int64_t stride, float constant, int rows) {
    if (threadIdx.x >= 32) return;
    const int row = 2 * threadIdx.x;
    const auto decay = [&](int r) -> double {
      return r >= rows ? 0.0 : double{g != nullptr ? g[r * stride] : constant};
    };
    double sum[2] = {decay(row), decay(row + 1)};
    SumRows(sum);
    const double total = __shfl_sync(~0u, sum[1], 31);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      of_row[row + i] = of_column[row + i] = sum[i];
      from_start[row + i] = ExpOf<T>(static_cast<float>(sum[i]));
      to_end[row + i] = ExpOf<T>(static_cast<float>(total - sum[i]));
    }
    if (threadIdx.x == 31) whole = ExpOf<T>(static_cast<float>(total));
  }
  // Of one warp, lane l of which has rows 2 l and 2 l + 1: x becomes the sum up to the row.
  __device__ static void SumRows(double (&x)[2]) {
    double through = x[0] + x[1];
#pragma unroll
    for (int back = 1; back < 32; back *= 2) {
      const double before = __shfl_up_sync(~0u, through, back);
      if (threadIdx.x >= back) through += before;
    }
    const double before = __shfl_up_sync(~0u, through, 1);
    if (threadIdx.x > 0) x[0] += before;
    x[1] = through;
  }

  template <class T>
  __device__ float Between(int r, int j) const {
    return ExpOf<T>(static_cast<float>(of_row[r] - of_column[j]));
  }
};

// Element i times factor(i).
template <int n, class Fn>
__device__ inline void ScalePiece(Piece<n>& piece, const Fn& factor) {
#pragma unroll
  for (int i = 0; i < n; ++i) piece[i] *= factor(i);
}

// Rows of values x [N, heads, V], widened for the mLSTM by a column of their own. What belongs to
// chunk c of head h is item c heads + h of scale and last.
template <class T>
struct ValueRows {
  const T* x_NGV;  // null: zeros
  int heads, v;
  bool widened = false;
  const float *scale = nullptr, *last = nullptr;  // [items, 64]: of a row, of its last column; or 1

  // As Load, without waiting where nothing is done to the rows.
  __device__ void Fetch(T* panel, const ChunkPlace& place, int64_t item, int begin) const {
    if (widened || scale != nullptr) return Load(panel, place, item, begin);
    const int64_t first = int64_t{place.token} * heads + item % heads;
    FetchPanel(panel, x_NGV == nullptr ? nullptr : x_NGV + first * v + begin, int64_t{heads} * v,
               place.rows, v - begin);
  }
  // Columns [begin, begin + 64) of a chunk's rows.
  __device__ void Load(T* panel, const ChunkPlace& place, int64_t item, int begin) const {
    const int64_t first = int64_t{place.token} * heads + item % heads;
    const T* from = x_NGV == nullptr ? nullptr : x_NGV + first * v + begin;
    LoadPanel(panel, from, int64_t{heads} * v, place.rows, v - begin, [&](int r, int, auto& piece) {
      if (scale != nullptr) ScalePiece(piece, [&](int) { return scale[item * kPanel + r]; });
    });
    const int column = v - begin, r = threadIdx.x;
    if (!widened || column < 0 || column >= kPanel) return;
    __syncthreads();
    if (r >= place.rows) return;
    Put(panel, r * kPanelStride<T> + column, last != nullptr ? last[item * kPanel + r] : 1);
  }
};

// Writes, or adds to; `to` may be null.
template <class T>
struct Gradient {
  T* to = nullptr;
  bool add = false;

  Gradient() = default;
  explicit Gradient(const GradInto& grad) : to(DataOrNull<T>(grad.to)), add(grad.accumulate) {}
};

// Arrays one after the other; without a base, only their bytes.
struct Carver {
  unsigned char* base = nullptr;
  int64_t bytes = 0;

  template <class T>
  __host__ __device__ T* Take(int64_t elements) {
    T* at = base == nullptr ? nullptr : reinterpret_cast<T*>(base + bytes);
    bytes += (elements * static_cast<int64_t>(sizeof(T)) + 255) / 256 * 256;
    return at;
  }
};
// layout(carver) takes its arrays, always the same ones.
template <class Layout>
auto CarveScratch(const Stream& stream, const Layout& layout) {
  Carver carver;
  layout(carver);
  Carver real{static_cast<unsigned char*>(Scratch(stream, carver.bytes))};
  return layout(real);
}

// Calls kernel<kPanels>, kPanels those of a key's width.
template <class Fn>
void DispatchKeyPanels(int k, Fn&& fn) {
  static_assert(kMostPanels * kPanel == gpu::kMostScanKeys);
  CHECK_LE(k, gpu::kMostScanKeys) << "channels of a key in a scan on the GPU";
  switch (PanelsOf(k)) {
    case 1:
      return fn.template operator()<1>();
    case 2:
      return fn.template operator()<2>();
    case 3:
      return fn.template operator()<3>();
    default:
      return fn.template operator()<4>();
  }
}

template <class Kernel>
void AllowShared(Kernel* kernel, int64_t bytes) {
  LT2_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(bytes)));
}

}  // namespace lt2::cuda
