// Kernels that need sums along rows: each row is held in the registers of `lanes` threads, so that
// it is read once.
#pragma once

#include "kernels/cuda/column_pass.cuh"

namespace lt2::cuda {

// Rows go to blocks of 256 threads, some to each; a row's pieces go round its `lanes` threads, a
// power of two.
struct RowShare {
  int lanes = 0, width = 0;

  __host__ __device__ int64_t rows_of_block() const { return 256 / lanes; }
};

// Calls fn.operator()<kPieces>(share): kPieces of n elements are room enough for a lane.
template <int n, class Fn>
void DispatchRow(int64_t width, Fn&& fn) {
  const int64_t pieces = width / n;
  const int of_row = static_cast<int>(width);
  const auto lanes_for = [pieces](int64_t each) {
    int lanes = 1;
    while (lanes * each < pieces) lanes *= 2;
    return lanes;
  };
  // Enough loads in flight, and few idle lanes.
  const int by_two = lanes_for(2), by_three = lanes_for(3), by_four = lanes_for(4);
  const int others = pieces <= 64 ? 2 * by_two : 4 * by_four;
  if (by_three <= 256 && 3 * by_three < others) {
    return fn.template operator()<3>(RowShare{by_three, of_row});
  }
  if (pieces <= 64) return fn.template operator()<2>(RowShare{by_two, of_row});
  if (by_four <= 256) return fn.template operator()<4>(RowShare{by_four, of_row});
  if (lanes_for(8) <= 256) return fn.template operator()<8>(RowShare{256, of_row});
  if constexpr (n < 8) {
    constexpr int kMost = n == 1 ? 32 : 16;
    if (lanes_for(kMost) <= 256) return fn.template operator()<kMost>(RowShare{256, of_row});
  }
  CHECK(false) << "a row of " << width << " elements is too wide";
}

// Where thread `threadIdx.x` of 256 stands.
template <int n, int kPieces>
struct RowPlace {
  int lanes, lane, group;  // group: which of the block's rows
  int width;

  __device__ explicit RowPlace(const RowShare& share)
      : lanes(share.lanes),
        lane(threadIdx.x % share.lanes),
        group(threadIdx.x / share.lanes),
        width(share.width) {}
  __device__ int Column(int piece) const { return (piece * lanes + lane) * n; }

  // Zeros where there is nothing.
  template <class T>
  __device__ void LoadRow(const T* row, bool inside, Piece<n> (&to)[kPieces]) const {
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      if (inside && Column(j) < width) {
        to[j] = Load<n>(row + Column(j));
      } else {
        to[j] = {};
      }
    }
  }
  template <class T>
  __device__ void StoreRow(T* row, const Piece<n> (&from)[kPieces], bool add = false) const {
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      if (Column(j) < width) StoreOrAdd<n>(row + Column(j), from[j], add);
    }
  }

  // Over the row. All threads of the block must call.
  __device__ float Sum(float x) const {
    if (lanes <= 32) {
      for (int step = lanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
      return x;
    }
    __shared__ float of_warp[8];
    x = WarpSum(x);
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

// Blocks of a pass over rows that keeps sums of columns: each walks many rows, and two share a
// processor where registers allow.
inline int64_t SummingBlocks(int64_t rows, const RowShare& share) {
  return std::min<int64_t>(Blocks(rows, share.rows_of_block()), 264);
}

}  // namespace lt2::cuda
