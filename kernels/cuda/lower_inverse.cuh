// X = (I + A)^{-1} of a strictly lower triangular A [64, 64], in floats, by the warps of a block.
//
// In blocks of 16: X_jj, and below it, with A_im for j <= m < i,
//   X_ij = -X_ii sum over m of A_im X_mj,
// where the columns of X do not know of each other. One square holds both: A's blocks lie below the
// diagonal until the end, X_jj takes A_jj's place and X_ij, i > j, lies at block (j, i).
//
// Products are the tensor cores', of floats in two parts, transposed: a result's fragment is then
// the next product's left operand as it is.
#pragma once

#include "kernels/cuda/warp_tiles.cuh"

namespace lt2::cuda {

// c [16, 8] += a [16, 8] b [8, 8] of floats with 10 bits behind the point, the lower ones zero.
// With r = l / 4 and k = l mod 4, lane l holds of a (r, k), (r + 8, k), (r, k + 4), (r + 8, k + 4),
// of b (k, r) and (k + 4, r), and of c what it does in tensor_core.cuh.
__device__ inline void MultiplyAddShort(float (&c)[4], const uint32_t (&a)[4],
                                        const uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

struct LowerSquare {
  static constexpr int kBlock = 16, kBlocks = 4;
  static constexpr int kStride = 72;  // pairs of a fragment fall into different banks
  static constexpr int kSize = kBlocks * kBlock * kStride;  // floats

  float* at;

  __device__ float* Block(int i, int j) const { return at + i * kBlock * kStride + j * kBlock; }
  // X_ij, j <= i.
  __device__ float* Inverse(int i, int j) const { return i == j ? Block(i, i) : Block(j, i); }

  // A_jj becomes X_jj: its own blocks of 8 by substitution, a lane a column. Work of one warp.
  __device__ void InvertBlock(int j) const {
    const int lane = threadIdx.x % 32, half = lane / kHalf % 2, column = lane % kHalf;
    float* block = Block(j, j);
    float* own = block + half * kHalf * (kStride + 1);
    float x[kHalf];
#pragma unroll
    for (int r = 0; r < kHalf; ++r) {
      float sum = r == column ? 1 : 0;
#pragma unroll
      for (int m = 0; m < r; m += 4) {
        const float4 a = *reinterpret_cast<const float4*>(own + r * kStride + m);
        sum -= a.x * x[m];
        if (m + 1 < r) sum -= a.y * x[m + 1];
        if (m + 2 < r) sum -= a.z * x[m + 2];
        if (m + 3 < r) sum -= a.w * x[m + 3];
      }
      x[r] = sum;
    }
    __syncwarp();
#pragma unroll
    for (int r = 0; r < kHalf; ++r) {
      if (r % 2 == lane / kBlock) own[r * kStride + column] = x[r];
    }
    __syncwarp();
    Sums sum, last;
    const float first[4] = {block[Turned(0)], block[Turned(0) + kStride], 0, 0};
    float* below = block + kHalf * kStride;
    sum.AddProduct(first, below);
    float middle[4];
    sum.Put(middle, -1);
    last.AddProduct(middle, below + kHalf);
    last.Put(middle, 1);
    __syncwarp();
    below[Turned(0)] = middle[0], below[Turned(0) + kStride] = middle[1];
  }

  // The rest of X, once all X_jj are there: columns by the first warps of the block, beside
  // whatever the others do. Between two __syncthreads().
  __device__ void InvertRest() const {
    const int j = __shfl_sync(~0u, threadIdx.x / 32, 0);
    if (j + 1 >= kBlocks) return;
    float x[kBlocks - 1][2][4];  // X_mj^T from m = j on
    LoadTurned(x[0], Block(j, j));
#pragma unroll
    for (int n = 1; n < kBlocks; ++n) {
      const int i = j + n;
      if (i >= kBlocks) return;
      Sums sum[2], product[2];
#pragma unroll
      for (int m = 0; m < n; ++m) AddProduct(sum, x[m], Block(i, j + m), false);
      float middle[2][4];
      sum[0].Put(middle[0], -1), sum[1].Put(middle[1], -1);
      AddProduct(product, middle, Block(i, i), true);
      product[0].Put(middle[0], 1), product[1].Put(middle[1], 1);
      StoreTurned(Block(j, i), middle);
      if (n + 1 == kBlocks) return;
#pragma unroll
      for (int p = 0; p < 8; ++p) x[n][p / 4][p % 4] = middle[p / 4][p % 4];
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
  static constexpr int kHalf = 8;

  // A float in two parts of which MultiplyAddShort takes all bits; 2 of its own are lost.
  struct Parts {
    uint32_t high, low;
  };
  __device__ static uint32_t Short(float x) { return __float_as_uint(x) & 0xffffe000u; }
  __device__ static Parts PartsOf(float x) {
    const uint32_t high = Short(x);
    return {high, Short(x - __uint_as_float(high))};
  }
  // The lane's pairs of a block's transpose: rows 2 (lane mod 4) and the next of column lane / 4.
  __device__ static int Turned(int row) {
    const int lane = threadIdx.x % 32;
    return (row + lane % 4 * 2) * kStride + lane / 4;
  }
  // Sums [16, 8] of products, those of low parts on their own: shorter chains.
  struct Sums {
    float high[4] = {}, low[4] = {};

    // += x [16, 8] a^T, a [8, 8]. Inner indices are taken in the order in which x, the fragment of
    // a result, has them: those of a pair are 4 apart.
    __device__ void AddProduct(const float (&x)[4], const float* a) {
      const int lane = threadIdx.x % 32;
      const float2 pair = *reinterpret_cast<const float2*>(a + lane / 4 * kStride + lane % 4 * 2);
      const Parts left[4] = {PartsOf(x[0]), PartsOf(x[2]), PartsOf(x[1]), PartsOf(x[3])};
      const Parts right[2] = {PartsOf(pair.x), PartsOf(pair.y)};
      const uint32_t high_left[4] = {left[0].high, left[1].high, left[2].high, left[3].high};
      const uint32_t low_left[4] = {left[0].low, left[1].low, left[2].low, left[3].low};
      MultiplyAddShort(high, high_left, {right[0].high, right[1].high});
      MultiplyAddShort(low, high_left, {right[0].low, right[1].low});
      MultiplyAddShort(low, low_left, {right[0].high, right[1].high});
    }
    __device__ void Put(float (&to)[4], float sign) const {
#pragma unroll
      for (int i = 0; i < 4; ++i) to[i] = sign * (high[i] + low[i]);
    }
  };
  // The same of [16, 16] each; lower: a is zero above its diagonal.
  __device__ static void AddProduct(Sums (&sum)[2], const float (&x)[2][4], const float* a,
                                    bool lower) {
#pragma unroll
    for (int inner = 0; inner < 2; ++inner) {
#pragma unroll
      for (int column = 0; column < 2; ++column) {
        if (lower && inner > column) continue;
        sum[column].AddProduct(x[inner], a + column * kHalf * kStride + inner * kHalf);
      }
    }
  }

  __device__ static void LoadTurned(float (&x)[2][4], const float* block) {
#pragma unroll
    for (int p = 0; p < 8; ++p) {
      x[p / 4][p % 4] = block[Turned(p / 4 * kHalf + p % 2) + p % 4 / 2 * kHalf];
    }
  }
  __device__ static void StoreTurned(float* block, const float (&x)[2][4]) {
#pragma unroll
    for (int p = 0; p < 8; ++p) {
      block[Turned(p / 4 * kHalf + p % 2) + p % 4 / 2 * kHalf] = x[p / 4][p % 4];
    }
  }
};

}  // namespace lt2::cuda
