// Narrow projections in bfloat16: few rows of weights stay near while x or its gradient streams by.
#include "kernels/cuda/column_pass.cuh"
#include "kernels/cuda/narrow_both.cuh"
#include "kernels/cuda/narrow_input.cuh"
#include "kernels/cuda/narrow_rows.cuh"
#include "kernels/cuda/narrow_weight_panels.cuh"
#include "kernels/cuda/tensor_core.cuh"
#include "kernels/narrow_linear.h"

namespace lt2::cuda {
namespace {

constexpr int64_t kBlocks = 264;  // two on each of 132 processors

// A ring of stages in shared memory, filled by copies that nobody waits for: fetch(s) begins those
// of stage s, use(s) reads it. Both are told where the stage lies.
template <int kStages, class Fetch, class Use>
__device__ inline void RunStages(int stages, const Fetch& fetch, const Use& use) {
  for (int s = 0; s < kStages - 1; ++s) {
    if (s < stages) fetch(s, s);
    CommitCopies();
  }
  for (int s = 0, place = 0; s < stages; ++s) {
    WaitForCopies<kStages - 2>();
    __syncthreads();  // the stage is there, and the one before it has been read
    const int next = s + kStages - 1;
    if (next < stages) fetch(next, place == 0 ? kStages - 1 : place - 1);
    CommitCopies();
    use(place);
    if (++place == kStages) place = 0;
  }
}

// y = x wᵀ. A block of 4 warps has 64 rows and all outputs, 16 kTiles of them; a stage holds 64
// columns of x and w.
template <int kTiles>
struct ForwardShape {
  static constexpr int kStages = 6, kRows = 64, kDepth = 64, kThreads = 128;
  static constexpr int kStride = kDepth + 8;
  static constexpr int kElements = (kRows + 16 * kTiles) * kStride;
  static constexpr int kShared = kStages * kElements * static_cast<int>(sizeof(bf16));
};

template <int kTiles>
__global__ void __launch_bounds__(128)
    NarrowForward(int64_t rows, int width, const bf16* x, const __grid_constant__ NarrowPieces y) {
  using Shape = ForwardShape<kTiles>;
  constexpr int kStride = Shape::kStride, kAcross = Shape::kDepth / 8;
  constexpr int kHigh = Shape::kThreads / kAcross;  // rows that the block copies at once
  bf16* stages = reinterpret_cast<bf16*>(DynamicShared());
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int own_row = threadIdx.x / kAcross, own_column = threadIdx.x % kAcross * 8;
  const int64_t first = int64_t{blockIdx.x} * Shape::kRows;

  const bf16* own_x = x + (first + own_row) * width + own_column;
  const bf16* own_w[kTiles];  // null: no such output
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    const int p = (own_row + kHigh * t) / kPiece, j = own_row % kPiece;
    const bool there = p < y.count && j < y.of[p].size;
    own_w[t] = there ? y.of[p].w + int64_t{j} * width + own_column : nullptr;
  }
  const auto fetch = [&](int s, int place) {
    bf16* to = stages + place * Shape::kElements + own_row * kStride + own_column;
    const int column = s * Shape::kDepth;
    const bool within = column + own_column < width;
#pragma unroll
    for (int r = 0; r < Shape::kRows; r += kHigh) {
      const bool valid = within && first + own_row + r < rows;
      CopyAsync16(SharedAddress(to + r * kStride), valid ? own_x + int64_t{r} * width + column : x,
                  valid);
    }
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const bool valid = within && own_w[t] != nullptr;
      CopyAsync16(SharedAddress(to + (Shape::kRows + kHigh * t) * kStride),
                  valid ? own_w[t] + column : x, valid);
    }
  };

  float sum[kTiles][2][4] = {};
  const int low = lane % 8 + lane / 8 % 2 * 8, high = lane % 8 + lane / 16 * 8;
  RunStages<Shape::kStages>((width + Shape::kDepth - 1) / Shape::kDepth, fetch, [&](int place) {
    const bf16* of_x = stages + place * Shape::kElements;
    const bf16* of_w = of_x + Shape::kRows * kStride;
#pragma unroll
    for (int k = 0; k < Shape::kDepth; k += 16) {
      uint32_t left[4];
      LoadMatrices(left, SharedAddress(of_x + (16 * warp + low) * kStride + k + lane / 16 * 8));
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        uint32_t right[4];
        LoadMatrices(right, SharedAddress(of_w + (16 * t + high) * kStride + k + lane / 8 % 2 * 8));
        MultiplyAdd(sum[t][0], left, right[0], right[1]);
        MultiplyAdd(sum[t][1], left, right[2], right[3]);
      }
    }
  });

  const int64_t row = first + 16 * warp + lane / 4;
  const int j = lane % 4 * 2;
#pragma unroll
  for (int p = 0; p < 2 * kTiles; ++p) {
    if (p >= y.count) break;
    const NarrowPiece& piece = y.of[p];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (row + 8 * i >= rows) continue;
      bf16* at = piece.y + (row + 8 * i) * piece.stride + j;
      const float a = sum[p / 2][p % 2][2 * i], b = sum[p / 2][p % 2][2 * i + 1];
      if (piece.wide) {
        *reinterpret_cast<uint32_t*>(at) = Halves(a, b);
      } else {
        if (j < piece.size) Put(at, 0, a);
        if (j + 1 < piece.size) Put(at, 1, b);
      }
    }
  }
}

// dw += dyᵀ x, where panels do not serve. A block of 8 warps has 128 columns, all outputs and a
// band of rows; a stage holds 64 rows of x and dy. Each warp has 16 of the columns.
template <int kTiles>
struct WeightShape {
  static constexpr int kStages = 4, kRows = 64, kColumns = 128, kThreads = 256;
  static constexpr int kStride = kColumns + 8, kOutputStride = 16 * kTiles + 8;
  static constexpr int kElements = kRows * (kStride + kOutputStride);
  static constexpr int kShared = kStages * kElements * static_cast<int>(sizeof(bf16));
};

// partial [bands, 8 pieces, width]
template <int kTiles>
__global__ void __launch_bounds__(256)
    NarrowWeight(int64_t rows, int64_t band, int width, const bf16* x,
                 const __grid_constant__ NarrowPieces dy, float* partial) {
  using Shape = WeightShape<kTiles>;
  constexpr int kStride = Shape::kStride, kOutputStride = Shape::kOutputStride;
  constexpr int kAcross = Shape::kColumns / 8, kHigh = Shape::kThreads / kAcross;
  bf16* stages = reinterpret_cast<bf16*>(DynamicShared());
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int first = blockIdx.x * Shape::kColumns;
  const int64_t begin = blockIdx.y * band, end = min(rows, begin + band);

  const auto fetch = [&](int s, int place) {
    bf16* to = stages + place * Shape::kElements;
    const int64_t top = begin + int64_t{s} * Shape::kRows;
    const int row = threadIdx.x / kAcross, column = threadIdx.x % kAcross * 8;
#pragma unroll
    for (int r = row; r < Shape::kRows; r += kHigh) {
      const bool valid = top + r < end && first + column < width;
      CopyAsync16(SharedAddress(to + r * kStride + column),
                  valid ? x + (top + r) * width + first + column : x, valid);
    }
    to += Shape::kRows * kStride;
#pragma unroll
    for (int i = threadIdx.x; i < Shape::kRows * 2 * kTiles; i += Shape::kThreads) {
      const int r = i / (2 * kTiles), p = i % (2 * kTiles);
      const bool valid = top + r < end && p < dy.count;
      bf16* at = to + r * kOutputStride + p * kPiece;
      if (!valid || dy.of[p].wide) {
        CopyAsync16(SharedAddress(at), valid ? dy.of[p].y + (top + r) * dy.of[p].stride : x, valid);
      } else {
        *reinterpret_cast<uint4*>(at) = LoadOutputs(dy.of[p], top + r);
      }
    }
  };

  float sum[kTiles][2][4] = {};
  const int low = lane % 8 + lane / 8 % 2 * 8, high = lane % 8 + lane / 16 * 8;
  const int stages_of_band = static_cast<int>((end - begin + Shape::kRows - 1) / Shape::kRows);
  RunStages<Shape::kStages>(stages_of_band, fetch, [&](int place) {
    const bf16* of_x = stages + place * Shape::kElements;
    const bf16* of_dy = of_x + Shape::kRows * kStride;
#pragma unroll
    for (int k = 0; k < Shape::kRows; k += 16) {
      uint32_t right[4];
      LoadTransposed(right, SharedAddress(of_x + (k + low) * kStride + 16 * warp + lane / 16 * 8));
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        uint32_t left[4];
        LoadTransposed(
            left, SharedAddress(of_dy + (k + high) * kOutputStride + 16 * t + lane / 8 % 2 * 8));
        MultiplyAdd(sum[t][0], left, right[0], right[1]);
        MultiplyAdd(sum[t][1], left, right[2], right[3]);
      }
    }
  });

  const int64_t outputs = int64_t{dy.count} * kPiece;
#pragma unroll
  for (int p = 0; p < 2 * kTiles; ++p) {
    if (p >= dy.count || lane / 4 >= dy.of[p].size) continue;
    float* to = partial + (blockIdx.y * outputs + p * kPiece + lane / 4) * width;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int column = first + 16 * warp + 8 * half + lane % 4 * 2;
      if (column >= width) continue;
      const float* pair = sum[p / 2][half] + p % 2 * 2;
      *reinterpret_cast<float2*>(to + column) = make_float2(pair[0], pair[1]);
    }
  }
}

// A sum of element i of [8 pieces, width], to where its projection's gradient is.
struct AddToWeights {
  NarrowPieces dw;
  uint32_t width;

  __device__ void operator()(int64_t i, float sum) const {
    const uint32_t output = static_cast<uint32_t>(i) / width;
    const NarrowPiece& piece = dw.of[output / kPiece];
    const uint32_t j = output % kPiece;
    if (j < piece.size) piece.dw[int64_t{j} * width + static_cast<uint32_t>(i) % width] += sum;
  }
};

template <class Kernel>
void AllowShared(Kernel kernel, int bytes) {
  LT2_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
}

}  // namespace

void NarrowLinearForward(Stream& stream, const NarrowLinearForwardArgs& args) {
  const NarrowPieces pieces = PiecesOf(args.x, args.w, args.y);
  if (pieces.count == 0) return NarrowLinearInParts(stream, args);
  const int64_t rows = args.x.shape().rows(), width = args.x.shape().back();
  if (rows == 0) return;
  if (RunNarrowRows(stream, "NarrowLinearForward", rows, width, Data<bf16>(args.x), pieces)) {
    return;
  }
  DispatchTiles(pieces, [&]<int kTiles>() {
    using Shape = ForwardShape<kTiles>;
    AllowShared(NarrowForward<kTiles>, Shape::kShared);
    NarrowForward<kTiles>
        <<<Blocks(rows, Shape::kRows), Shape::kThreads, Shape::kShared, Handle(stream)>>>(
            rows, static_cast<int>(width), Data<bf16>(args.x), pieces);
  });
  CheckLaunch("NarrowLinearForward");
}

void NarrowLinearInput(Stream& stream, const NarrowLinearInputArgs& args) {
  const NarrowPieces pieces = PiecesOf(args.dx, args.w, args.dy);
  if (pieces.count == 0) return NarrowLinearInParts(stream, args);
  const int64_t rows = args.dx.shape().rows(), width = args.dx.shape().back();
  if (rows == 0) return;
  RunNarrowInput(stream, "NarrowLinearInput", rows, width, Data<bf16>(args.dx), args.accumulate_dx,
                 pieces);
}

void NarrowLinearWeight(Stream& stream, const NarrowLinearWeightArgs& args) {
  const NarrowPieces pieces = PiecesOf(args.x, {}, args.dy, args.dw);
  if (pieces.count == 0) return NarrowLinearInParts(stream, args);
  const int64_t rows = args.x.shape().rows(), width = args.x.shape().back();
  if (rows == 0) return;
  if (RunNarrowWeightPanels(stream, "NarrowLinearWeight", rows, width, Data<bf16>(args.x),
                            pieces)) {
    return;
  }
  DispatchTiles(pieces, [&]<int kTiles>() {
    using Shape = WeightShape<kTiles>;
    const unsigned across = Blocks(width, Shape::kColumns);
    const int64_t stages = Blocks(rows, Shape::kRows);
    const int64_t each = Blocks(stages, std::clamp<int64_t>(kBlocks / across, 1, stages));
    const int64_t band = each * Shape::kRows, bands = Blocks(rows, band);
    const int64_t sums = pieces.count * kPiece * width;
    float* partial = ScratchFor<float>(stream, bands * sums);
    AllowShared(NarrowWeight<kTiles>, Shape::kShared);
    NarrowWeight<kTiles><<<dim3(across, static_cast<unsigned>(bands)), Shape::kThreads,
                           Shape::kShared, Handle(stream)>>>(rows, band, static_cast<int>(width),
                                                             Data<bf16>(args.x), pieces, partial);
    CheckLaunch("NarrowLinearWeight");
    FinishSums(stream, "NarrowLinearWeight", bands, sums, sums, partial,
               AddToWeights{pieces, static_cast<uint32_t>(width)});
  });
}

void NarrowLinearBackward(Stream& stream, const NarrowLinearBackwardArgs& args) {
  const NarrowPieces pieces = PiecesOf(args.x, args.w, args.dy, args.dw);
  const int64_t rows = args.x.shape().rows(), width = args.x.shape().back();
  if (pieces.count > 0 && rows > 0 && Aligned(args.dx) &&
      RunNarrowBoth(stream, "NarrowLinearBackward", rows, width, Data<bf16>(args.x),
                    Data<bf16>(args.dx), args.accumulate_dx, pieces)) {
    return;
  }
  cuda::NarrowLinearInput(stream, args.input());
  cuda::NarrowLinearWeight(stream, args.weight());
}

}  // namespace lt2::cuda
