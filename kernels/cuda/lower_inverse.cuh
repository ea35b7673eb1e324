// X = (I + A)^{-1} of a strictly lower triangular A [64, 64], in floats, by eight warps.
//
// In blocks of 16: X_jj by substitution, and below it, with A_im for j <= m < i,
//   X_ij = -X_ii sum over m of A_im X_mj,
// where the columns of X do not know of each other. One square holds both: A's blocks lie below the
// diagonal until the end, X_jj takes A_jj's place and X_ij, i > j, lies at block (j, i).
#pragma once

#include "kernels/cuda/warp_tiles.cuh"

namespace lt2::cuda {

struct LowerSquare {
  static constexpr int kBlock = 16, kBlocks = 4;
  static constexpr int kStride = 72;  // pairs of a fragment fall into different banks
  static constexpr int kSize = kBlocks * kBlock * kStride;  // floats

  float* at;

  __device__ float* Block(int i, int j) const { return at + i * kBlock * kStride + j * kBlock; }
  // X_ij, j <= i.
  __device__ float* Inverse(int i, int j) const { return i == j ? Block(i, i) : Block(j, i); }

  // A_jj becomes X_jj. Work of one warp.
  __device__ void InvertBlock(int j) const {
    const int lane = threadIdx.x % 32, column = lane % kBlock;
    float* block = Block(j, j);
    float x[kBlock];
#pragma unroll
    for (int r = 0; r < kBlock; ++r) {
      float sum = r == column ? 1 : 0;
#pragma unroll
      for (int m = 0; m < r; m += 4) {
        const float4 a = *reinterpret_cast<const float4*>(block + r * kStride + m);
        sum -= a.x * x[m];
        if (m + 1 < r) sum -= a.y * x[m + 1];
        if (m + 2 < r) sum -= a.z * x[m + 2];
        if (m + 3 < r) sum -= a.w * x[m + 3];
      }
      x[r] = sum;
    }
    __syncwarp();
#pragma unroll
    for (int r = 0; r < kBlock; ++r) {
      if (r % 2 == lane / kBlock) block[r * kStride + column] = x[r];
    }
  }

  // The rest of X, once all X_jj are there. All warps; between two __syncthreads().
  __device__ void InvertRest() const {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int j = warp % kBlocks, column = warp / kBlocks * 8 + lane % 8, first_row = lane / 8;
    for (int i = j + 1; i < kBlocks; ++i) {
      float sum[4] = {};
      for (int m = j; m < i; ++m) AddProduct(sum, Block(i, m), Inverse(m, j) + column, first_row);
      float* to = Block(j, i) + column;
      Put(to, sum, first_row, 1);
      float x[4] = {};
      AddProduct(x, Block(i, i), to, first_row);
      __syncwarp();
      Put(to, x, first_row, -1);
    }
  }

  // Rows [16 i, 16 i + 16) of X, columns [16 j, 16 j + 16), j <= i, as a left operand: column c of
  // X times factor(c).
  template <class Fn>
  __device__ void LoadInverse(uint32_t (&a)[4], int i, int j, const Fn& factor) const {
    const int lane = threadIdx.x % 32, row = lane / 4, column = lane % 4 * 2;
    const float* block = Inverse(i, j);
#pragma unroll
    for (int p = 0; p < 4; ++p) {
      const int c = column + p / 2 * 8;
      const float2 x = *reinterpret_cast<const float2*>(block + (row + p % 2 * 8) * kStride + c);
      a[p] = Halves(x.x * factor(j * kBlock + c), x.y * factor(j * kBlock + c + 1));
    }
  }

 private:
  // sum[i] += <row first_row + 4 i of a, the column at x>.
  __device__ static void AddProduct(float (&sum)[4], const float* a, const float* x,
                                    int first_row) {
    float of_x[kBlock];
#pragma unroll
    for (int m = 0; m < kBlock; ++m) of_x[m] = x[m * kStride];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int m = 0; m < kBlock; m += 4) {
        const float4 four = *reinterpret_cast<const float4*>(a + (first_row + 4 * i) * kStride + m);
        sum[i] += four.x * of_x[m];
        sum[i] += four.y * of_x[m + 1];
        sum[i] += four.z * of_x[m + 2];
        sum[i] += four.w * of_x[m + 3];
      }
    }
  }
  __device__ static void Put(float* to, const float (&x)[4], int first_row, float sign) {
#pragma unroll
    for (int i = 0; i < 4; ++i) to[(first_row + 4 * i) * kStride] = sign * x[i];
    __syncwarp();
  }
};

}  // namespace lt2::cuda
