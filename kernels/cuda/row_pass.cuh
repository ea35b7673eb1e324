// Kernels that need sums along rows: each row is held in the registers of `lanes` threads, so that
// it is read once.
#pragma once

#include "kernels/cuda/column_pass.cuh"
#include "kernels/gpu_limits.h"

namespace lt2::cuda {

// Rows go to blocks of 256 threads, some to each; a row's pieces go round its `lanes` threads, a
// power of two.
struct RowShare {
  int log_lanes = 0, width = 0;

  RowShare(int64_t lanes, int64_t row_width) : width(static_cast<int>(row_width)) {
    while (1 << log_lanes < lanes) ++log_lanes;
  }
  __host__ __device__ int64_t rows_of_block() const { return 256 >> log_lanes; }
};

// Calls fn.operator()<kPieces>(share): kPieces of n elements are room enough for a lane. kSums: the
// kernel keeps sums of columns and reads a row ahead, which takes registers.
template <int n, bool kSums = false, class Fn>
void DispatchRow(int64_t width, Fn&& fn) {
  static_assert(gpu::MostNormedRow(n == 1 ? 1 : 8) == 256 * (n == 1 ? 32 : n < 8 ? 16 * n : 8 * n));
  const int64_t pieces = width / n;
  const auto lanes_for = [pieces](int64_t each) {
    int64_t lanes = 1;
    while (lanes * each < pieces) lanes *= 2;
    return lanes;
  };
  const auto run = [&]<int kPieces>() {
    if (lanes_for(kPieces) > 256) return false;
    fn.template operator()<kPieces>(RowShare(kPieces > 4 ? 256 : lanes_for(kPieces), width));
    return true;
  };
  if constexpr (n == 1) {
    if (run.template operator()<4>() || run.template operator()<32>()) return;
  } else {
    // Few idle lanes, then enough loads in flight.
    constexpr int kUsual = kSums ? 2 : 4;
    const int64_t usual = pieces <= 64 ? 2 : kUsual;
    if (lanes_for(3) <= 256 && 3 * lanes_for(3) < usual * lanes_for(usual)) {
      return void(run.template operator()<3>());
    }
    if (usual == 2 && run.template operator()<2>()) return;
    if constexpr (!kSums) {
      if (run.template operator()<4>()) return;
    }
    if (run.template operator()<8>()) return;
    if constexpr (n < 8) {
      if (run.template operator()<16>()) return;
    }
  }
  CHECK(false) << "a row of " << width << " elements is too wide";
}

// Where thread `threadIdx.x` of 256 stands.
template <int n, int kPieces>
struct RowPlace {
  int lanes, lane, group;  // group: which of the block's rows
  int width;

  template <class T>
  using Row = Packed<T, n>[kPieces];

  __device__ explicit RowPlace(const RowShare& share)
      : lanes(1 << share.log_lanes),
        lane(threadIdx.x & (lanes - 1)),
        group(threadIdx.x >> share.log_lanes),
        width(share.width) {}
  __device__ int Column(int piece) const { return (piece * lanes + lane) * n; }
  // Which row is the thread's, of those from `first` on; the last one again where there is none, so
  // that loads need no conditions and go out together.
  __device__ int64_t RowFrom(int64_t first, int64_t rows) const {
    return min(first + group, rows - 1);
  }

  // Zeros beyond the row's end.
  template <class T>
  __device__ void LoadRow(const T* row, Packed<T, n> (&to)[kPieces]) const {
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      const bool inside = Column(j) < width;
      to[j] = LoadPacked<n>(row + (inside ? Column(j) : 0));
      if (!inside) to[j] = {};
    }
  }
  // The lane's share of a weight of every column.
  __device__ Piece<n> Weights(const float* w, int piece) const {
    return Load<n>(w + (Column(piece) < width ? Column(piece) : 0));
  }
  template <class T>
  __device__ void StorePiece(T* row, int piece, const Piece<n>& from, bool add = false) const {
    if (Column(piece) < width) StoreOrAdd<n>(row + Column(piece), from, add);
  }

  // Over the row. All threads of the block must call.
  __device__ float Sum(float x) const {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      const float other = __shfl_xor_sync(~0u, x, step);
      if (step < lanes) x += other;
    }
    if (lanes <= 32) return x;
    __shared__ float of_warp[8];
    __syncthreads();  // an earlier call's results have been read
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = x;
    __syncthreads();
    float sum = 0;
    const int warps = lanes / 32;
    for (int w = 0; w < warps; ++w) sum += of_warp[group * warps + w];
    return sum;
  }

  // to[column] = the sum over the block's rows of what each lane has summed of its columns.
  __device__ void StoreColumnSums(Piece<n> (&sums)[kPieces], float* to) const {
    if constexpr (kPieces <= 4) {  // more are a row a block
      if (lanes < 256) return AddUpColumnSums(sums, to);
    }
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      if (Column(j) < width) Store<n>(to + Column(j), sums[j]);
    }
  }

 private:
  __device__ void AddUpColumnSums(Piece<n> (&sums)[kPieces], float* to) const {
    __shared__ float of_block[128 * 4 * n];
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
#pragma unroll
      for (int i = 0; i < n; ++i) {
        for (int step = lanes; step < 32; step *= 2) {
          sums[j][i] += __shfl_xor_sync(~0u, sums[j][i], step);
        }
      }
    }
    // Teams of whole warps, one after the other.
    const int of_team = max(lanes, 32), teams = 256 / of_team;
    for (int team = 0; team < teams; ++team) {
      if (threadIdx.x / of_team == team && threadIdx.x % of_team < lanes) {
#pragma unroll
        for (int j = 0; j < kPieces; ++j) {
          if (Column(j) >= width) continue;
#pragma unroll
          for (int i = 0; i < n; ++i) {
            float& sum = of_block[Column(j) + i];
            sum = (team == 0 ? 0 : sum) + sums[j][i];
          }
        }
      }
      __syncthreads();
    }
    for (int c = threadIdx.x; c < width; c += 256) to[c] = of_block[c];
  }
};

// Blocks of a pass over rows that keeps sums of columns: each walks many rows, and `together` share
// a processor.
inline int64_t SummingBlocks(int64_t rows, const RowShare& share, int together = 2) {
  return std::min<int64_t>(Blocks(rows, share.rows_of_block()), 132 * together);
}

}  // namespace lt2::cuda
