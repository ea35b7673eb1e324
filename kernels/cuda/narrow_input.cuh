// Gradients of narrow projections' input in bfloat16, dx = or += dy w: a block holds what it needs
// of dy in shared memory and of w in registers, and then only writes.
#pragma once

#include <algorithm>

#include "kernels/cuda/narrow_pieces.cuh"
#include "kernels/cuda/tensor_core.cuh"

namespace lt2::cuda {

// Each of a block's 8 warps has 64 columns, `across` of them lie side by side, and walks down tiles
// of 16 rows: the block's own, then those as far on as there are bands, kInputRows in all.
inline constexpr int kInputWarps = 8, kInputColumns = 64, kInputRows = 256;

// Products' columns are any order of columns: chosen so that a lane has 8 neighbours of a row.
template <int kTiles, bool kAdd>
__global__ void __launch_bounds__(32 * kInputWarps, kTiles > 2 ? 1 : 2)
    NarrowInput(int rows, int width, int across, bf16* dx,
                const __grid_constant__ NarrowPieces dy) {
  constexpr int kStride = 16 * kTiles + 8;
  __shared__ __align__(16) bf16 outputs[kInputRows * kStride];
  const int high = 16 * kInputWarps / across, step = gridDim.y * high, begin = blockIdx.y * high;
#pragma unroll
  for (int i = threadIdx.x; i < kInputRows * 2 * kTiles; i += 32 * kInputWarps) {
    const int r = i / (2 * kTiles), p = i % (2 * kTiles), row = begin + r / high * step + r % high;
    bf16* to = outputs + r * kStride + p * kPiece;
    const bool there = row < rows && p < dy.count;
    if (!there || dy.of[p].wide) {
      CopyAsync16(SharedAddress(to), there ? dy.of[p].y + int64_t{row} * dy.of[p].stride : dx,
                  there);
    } else {
      *reinterpret_cast<uint4*>(to) = LoadOutputs(dy.of[p], row);
    }
  }

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, q = lane % 4, n = lane / 4;
  const int first = (blockIdx.x * across + warp % across) * kInputColumns;
  // Of product s, tile t: outputs 16 s + 2 q and the next, and those 8 further on, at column
  // 32 (t / 4) + 8 (n / 2) + 2 (t % 4) + n % 2.
  uint32_t w[kTiles][8][2];
#pragma unroll
  for (int p = 0; p < 2 * kTiles; ++p) {
    const int size = dy.of[p].size;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int c = first + 32 * half + n / 2 * 8;
      uint4 upper = {}, lower = {};
      const bf16* at = dy.of[p].w + int64_t{2 * q} * width + c;
      if (c < width && 2 * q < size) upper = *reinterpret_cast<const uint4*>(at);
      if (c < width && 2 * q + 1 < size) lower = *reinterpret_cast<const uint4*>(at + width);
      const unsigned pick = n % 2 == 0 ? 0x5410 : 0x7632;
      uint32_t(*to)[2] = w[p / 2] + 4 * half;
      to[0][p % 2] = __byte_perm(upper.x, lower.x, pick);
      to[1][p % 2] = __byte_perm(upper.y, lower.y, pick);
      to[2][p % 2] = __byte_perm(upper.z, lower.z, pick);
      to[3][p % 2] = __byte_perm(upper.w, lower.w, pick);
    }
  }

  const int column = first + 8 * q, last = rows - 1;
  uint4 there[2][2] = {};
  // On its way early; what is beyond the last row or column reads something else.
  const auto load = [&](int tile) {
#pragma unroll
    for (int i = 0; kAdd && i < 2; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int c = column + 32 * half;
        there[i][half] = *reinterpret_cast<const uint4*>(
            c < width ? dx + int64_t{min(tile + n + 8 * i, last)} * width + c : dx);
      }
    }
  };
  int top = begin + warp / across * 16;
  load(top);
  WaitForCopies();
  __syncthreads();

  uint32_t from =
      SharedAddress(outputs + (warp / across * 16 + lane % 16) * kStride + lane / 16 * 8);
  for (; top <= last; top += step, from += high * kStride * 2) {
    float sum[8][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int t = 0; t < 8; ++t) {
        const uint32_t word = reinterpret_cast<const uint32_t*>(&there[i][t / 4])[t % 4];
        sum[t][2 * i] = LowerHalf(word), sum[t][2 * i + 1] = UpperHalf(word);
      }
    }
    load(top + step);
#pragma unroll
    for (int s = 0; s < kTiles; ++s) {
      uint32_t left[4];
      LoadMatrices(left, from + 32 * s);
#pragma unroll
      for (int t = 0; t < 8; ++t) MultiplyAdd(sum[t], left, w[s][t][0], w[s][t][1]);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = top + n + 8 * i;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int c = column + 32 * half;
        if (row > last || c >= width) continue;
        const auto word = [&](int t) {
          return Halves(sum[4 * half + t][2 * i], sum[4 * half + t][2 * i + 1]);
        };
        *reinterpret_cast<uint4*>(dx + int64_t{row} * width + c) =
            make_uint4(word(0), word(1), word(2), word(3));
      }
    }
  }
}

inline void RunNarrowInput(const Stream& stream, const char* name, int64_t rows, int64_t width,
                           bf16* dx, bool add, const NarrowPieces& pieces) {
  constexpr int64_t kBlocks = 264;  // two on each of 132 processors
  int across = 1;
  while (across < kInputWarps && across * kInputColumns < width) across *= 2;
  const unsigned wide = Blocks(width, across * kInputColumns);
  const int64_t most = std::max<int64_t>(kBlocks / wide, Blocks(rows, kInputRows));
  const int64_t bands = std::min<int64_t>(most, Blocks(rows, 16 * kInputWarps / across));
  const dim3 grid(wide, static_cast<unsigned>(bands));
  DispatchTiles(pieces, [&]<int kTiles>() {
    const auto kernel = add ? NarrowInput<kTiles, true> : NarrowInput<kTiles, false>;
    kernel<<<grid, 32 * kInputWarps, 0, Handle(stream)>>>(
        static_cast<int>(rows), static_cast<int>(width), across, dx, pieces);
  });
  CheckLaunch(name);
}

}  // namespace lt2::cuda
