// Square panels of 64 rows and columns in shared memory, and their products by a block of 256
// threads: on tensor cores where elements are bf16, in float's arithmetic where they are float.
// Sums are float's either way.
#pragma once

#include "kernels/cuda/piece.cuh"
#include "kernels/cuda/tensor_core.cuh"

namespace lt2::cuda {

inline constexpr int kPanel = 64;
inline constexpr int kPanelThreads = 256;
// Of a row: neither ldmatrix nor a column of floats meets bank conflicts.
template <class T>
inline constexpr int kPanelStride = std::is_same_v<T, bf16> ? 72 : 68;
template <class T>
inline constexpr int kPanelSize = kPanel* kPanelStride<T>;  // elements

// Panels that cover `width`, and the columns of panel p in a width that is padded to 16.
__host__ __device__ inline int PanelsOf(int width) { return (width + kPanel - 1) / kPanel; }
__host__ __device__ inline int PaddedWidth(int width) { return (width + 15) / 16 * 16; }
__device__ inline int PanelColumns(int width, int p) { return min(kPanel, width - p * kPanel); }

// A 64 x 64 result over the block's registers. Warp w has rows 32 (w mod 2) on, in two tiles of 16,
// and columns 16 (w / 2) on, in two tiles of 8, as tensor_core.cuh lays them out.
struct Accumulator {
  float at[2][2][4] = {};
};

// fn(row, column, x, y): x at (row, column), y its right neighbour.
template <class Fn>
__device__ inline void ForEachPair(Accumulator& c, const Fn& fn) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row = warp % 2 * 32 + lane / 4, column = warp / 2 * 16 + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float* at = c.at[i / 2][j] + i % 2 * 2;
      fn(row + 8 * i, column + 8 * j, at[0], at[1]);
    }
  }
}

// Sums over rows: partial[(w / 2) 64 + row] += the sum over the warp's columns of fn(row, column,
// x, y). Every slot belongs to one thread.
inline constexpr int kRowPartials = 4 * kPanel;
template <class Fn>
__device__ inline void AddRowSums(Accumulator& c, float* partial, const Fn& fn) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row = warp % 2 * 32 + lane / 4, column = warp / 2 * 16 + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float *a = c.at[i / 2][0] + i % 2 * 2, *b = c.at[i / 2][1] + i % 2 * 2;
    float sum = fn(row + 8 * i, column, a[0], a[1]) + fn(row + 8 * i, column + 8, b[0], b[1]);
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    if (lane % 4 == 0) partial[warp / 2 * kPanel + row + 8 * i] += sum;
  }
}
__device__ inline float RowSum(const float* partial, int row) {
  return partial[row] + partial[kPanel + row] + partial[2 * kPanel + row] +
         partial[3 * kPanel + row];
}

// Likewise over columns: partial[(w mod 2) 64 + column] += the sum over the warp's rows, fn giving
// the terms of both columns.
inline constexpr int kColumnPartials = 2 * kPanel;
template <class Fn>
__device__ inline void AddColumnSums(Accumulator& c, float* partial, const Fn& fn) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row = warp % 2 * 32 + lane / 4, column = warp / 2 * 16 + lane % 4 * 2;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    float2 sum = {0, 0};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* at = c.at[i / 2][j] + i % 2 * 2;
      const float2 term = fn(row + 8 * i, column + 8 * j, at[0], at[1]);
      sum.x += term.x, sum.y += term.y;
    }
#pragma unroll
    for (int step = 4; step < 32; step *= 2) {
      sum.x += __shfl_xor_sync(~0u, sum.x, step);
      sum.y += __shfl_xor_sync(~0u, sum.y, step);
    }
    if (lane >= 4) continue;
    partial[warp % 2 * kPanel + column + 8 * j] += sum.x;
    partial[warp % 2 * kPanel + column + 8 * j + 1] += sum.y;
  }
}

// c += a b over inner indices [begin, end), multiples of 16. A transposed operand is stored so: a
// [inner, row], b [column, inner]. `tile` picks one tile of 16 rows of c; -1: all of them.
template <bool kTransposeA, bool kTransposeB>
__device__ inline void Multiply(Accumulator& c, const bf16* a, const bf16* b, int begin, int end,
                                int tile = -1) {
  constexpr int kStride = kPanelStride<bf16>;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row = warp % 2 * 32, column = warp / 2 * 16;
  const int low = lane % 8 + lane / 8 % 2 * 8, high = lane % 8 + lane / 16 * 8;
  for (int k = begin; k < end; k += 16) {
    uint32_t right[4];
    if constexpr (kTransposeB) {
      LoadMatrices(right, SharedAddress(b + (column + high) * kStride + k + lane / 8 % 2 * 8));
    } else {
      LoadTransposed(right, SharedAddress(b + (k + low) * kStride + column + lane / 16 * 8));
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (tile >= 0 && tile != warp % 2 * 2 + i) continue;
      uint32_t left[4];
      if constexpr (kTransposeA) {
        LoadTransposed(left,
                       SharedAddress(a + (k + high) * kStride + row + 16 * i + lane / 8 % 2 * 8));
      } else {
        LoadMatrices(left, SharedAddress(a + (row + 16 * i + low) * kStride + k + lane / 16 * 8));
      }
      MultiplyAdd(c.at[i][0], left, right[0], right[1]);
      MultiplyAdd(c.at[i][1], left, right[2], right[3]);
    }
  }
}

template <bool kTransposeA, bool kTransposeB>
__device__ inline void Multiply(Accumulator& c, const float* a, const float* b, int begin, int end,
                                int tile = -1) {
  constexpr int kStride = kPanelStride<float>;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row = warp % 2 * 32 + lane / 4, column = warp / 2 * 16 + lane % 4 * 2;
  if (tile >= 0 && tile / 2 != warp % 2) return;
#pragma unroll 4
  for (int k = begin; k < end; ++k) {
    float left[4], right[2][2];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      left[i] = kTransposeA ? a[k * kStride + row + 8 * i] : a[(row + 8 * i) * kStride + k];
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int n = column + j / 2 * 8 + j % 2;
      right[j / 2][j % 2] = kTransposeB ? b[n * kStride + k] : b[k * kStride + n];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (tile >= 0 && tile % 2 != i / 2) continue;
#pragma unroll
      for (int j = 0; j < 4; ++j)
        c.at[i / 2][j / 2][i % 2 * 2 + j % 2] += left[i] * right[j / 2][j % 2];
    }
  }
}

// A pair of neighbours in a panel; the column is even.
__device__ inline void PutPair(float* panel, int row, int column, float x, float y) {
  *reinterpret_cast<float2*>(panel + row * kPanelStride<float> + column) = make_float2(x, y);
}
__device__ inline void PutPair(bf16* panel, int row, int column, float x, float y) {
  *reinterpret_cast<uint32_t*>(panel + row * kPanelStride<bf16> + column) = Halves(x, y);
}
__device__ inline float2 GetPair(const float* panel, int row, int column) {
  return *reinterpret_cast<const float2*>(panel + row * kPanelStride<float> + column);
}
__device__ inline float2 GetPair(const bf16* panel, int row, int column) {
  const uint32_t two =
      *reinterpret_cast<const uint32_t*>(panel + row * kPanelStride<bf16> + column);
  return make_float2(LowerHalf(two), UpperHalf(two));
}

// panel (r, c) = fn(r, piece of the n neighbours at columns c …), all 64 x 64: what is beyond
// `rows` and `columns` of from (rows `stride` apart; null: nothing there) is zero. from may hold
// floats.
template <class T, class S, class Fn>
__device__ inline void LoadPanel(T* panel, const S* from, int64_t stride, int rows, int columns,
                                 const Fn& fn) {
  constexpr int n = kWide<T>, kPieces = kPanel / n;
  const bool wide =
      columns % n == 0 && stride % n == 0 && reinterpret_cast<uintptr_t>(from) % 16 == 0;
#pragma unroll
  for (int i = threadIdx.x; i < kPanel * kPieces; i += kPanelThreads) {
    const int r = i / kPieces, c = i % kPieces * n;
    Piece<n> piece = {};
    if (from != nullptr && r < rows && c < columns) {
      const S* at = from + r * stride + c;
      if (wide) {
        piece = Load<n>(at);
      } else {
        for (int j = 0; j < n && c + j < columns; ++j) piece[j] = Get(at, j);
      }
      fn(r, c, piece);
    }
    Store<n>(panel + r * kPanelStride<T> + c, piece);
  }
}
template <class T, class S>
__device__ inline void LoadPanel(T* panel, const S* from, int64_t stride, int rows, int columns) {
  LoadPanel(panel, from, stride, rows, columns, [](int, int, auto&) {});
}

// LoadPanel without waiting, where rows come in 16 bytes: WaitForCopies and __syncthreads() make
// the panel what it will be.
template <class T>
__device__ inline void FetchPanel(T* panel, const T* from, int64_t stride, int rows, int columns) {
  constexpr int n = kWide<T>, kPieces = kPanel / n;
  if (from == nullptr || columns % n != 0 || stride % n != 0 ||
      reinterpret_cast<uintptr_t>(from) % 16 != 0) {
    return LoadPanel(panel, from, stride, rows, columns);
  }
#pragma unroll
  for (int i = threadIdx.x; i < kPanel * kPieces; i += kPanelThreads) {
    const int r = i / kPieces, c = i % kPieces * n;
    const bool valid = r < rows && c < columns;
    CopyAsync16(SharedAddress(panel + r * kPanelStride<T> + c),
                valid ? from + r * stride + c : from, valid);
  }
}

// to [rows, columns] (rows `stride` apart) = or += the panel, each piece as fn leaves it.
template <class T, class S, class Fn>
__device__ inline void StorePanel(const T* panel, S* to, int64_t stride, int rows, int columns,
                                  bool add, const Fn& fn) {
  constexpr int n = kWide<T>, kPieces = kPanel / n;
  const bool wide =
      columns % n == 0 && stride % n == 0 && reinterpret_cast<uintptr_t>(to) % 16 == 0;
#pragma unroll
  for (int i = threadIdx.x; i < kPanel * kPieces; i += kPanelThreads) {
    const int r = i / kPieces, c = i % kPieces * n;
    if (r >= rows || c >= columns) continue;
    Piece<n> piece = Load<n>(panel + r * kPanelStride<T> + c);
    fn(r, c, piece);
    S* at = to + r * stride + c;
    if (wide) {
      StoreOrAdd<n>(at, piece, add);
    } else {
      for (int j = 0; j < n && c + j < columns; ++j) PutOrAdd(at, j, piece[j], add);
    }
  }
}
template <class T, class S>
__device__ inline void StorePanel(const T* panel, S* to, int64_t stride, int rows, int columns,
                                  bool add = false) {
  StorePanel(panel, to, stride, rows, columns, add, [](int, int, auto&) {});
}

}  // namespace lt2::cuda
