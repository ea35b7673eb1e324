#include "kernels/block_mean.h"
#include "kernels/cuda/block_rows.cuh"
#include "kernels/cuda/piece.cuh"

namespace lt2::cuda {
namespace {

// to = the mean of `block` rows in double and in order, as MeanOfRows takes it.
template <class T, int n>
__device__ void MeanPiece(const T* from, int64_t block, int64_t width, T* to) {
  double sums[n] = {};
#pragma unroll 16
  for (int64_t j = 0; j < block; ++j) {
    const Packed<T, n> piece = LoadPacked<n>(from + j * width);
#pragma unroll
    for (int i = 0; i < n; ++i) sums[i] += double{piece[i]};
  }
  Piece<n> mean;
#pragma unroll
  for (int i = 0; i < n; ++i) mean[i] = static_cast<float>(sums[i] / static_cast<double>(block));
  Store<n>(to, mean);
}

// A thread takes a piece of one row of means: there are few.
constexpr int kMeanThreads = 64;
template <class T, int n>
__global__ void __launch_bounds__(kMeanThreads)
    Forward(int64_t size, int64_t width, int64_t block, int64_t tokens, const int32_t* positions,
            const T* x, T* mean) {
  const int64_t i = (int64_t{blockIdx.x} * kMeanThreads + threadIdx.x) * n;
  if (i >= size) return;
  const int64_t first = FirstToken(positions, tokens, block, i / width);
  if (first < 0) return Store<n>(mean + i, Piece<n>{});
  MeanPiece<T, n>(x + first * width + i % width, block, width, mean + i);
}

template <class T, int n>
__global__ void __launch_bounds__(256)
    Backward(int64_t size, int64_t width, int64_t block, int64_t tokens, const int32_t* positions,
             const T* dmean, T* dx, bool add) {
  const int64_t i = (int64_t{blockIdx.x} * 256 + threadIdx.x) * n;
  if (i >= size) return;
  const int64_t token = i / width, position = positions[token], begin = token - position;
  const int64_t of_document = position / block, last = begin + (of_document + 1) * block - 1;
  Piece<n> piece = {};
  if (last < tokens && last - positions[last] == begin) {
    const int64_t row = BlockRow(begin, block) + of_document;
    const float factor = 1 / static_cast<float>(block);
    piece = Load<n>(dmean + row * width + i % width);
#pragma unroll
    for (int c = 0; c < n; ++c) piece[c] *= factor;
  } else if (add) {
    return;
  }
  StoreOrAdd<n>(dx + i, piece, add);
}

// blockIdx.y: the sequence.
template <class T, int n>
__global__ void __launch_bounds__(256) Step(int64_t width, int64_t block, int64_t S, int64_t R,
                                            const int32_t* lengths, const T* x_BSC, T* mean_BRC) {
  const int64_t column = (int64_t{blockIdx.x} * 256 + threadIdx.x) * n, b = blockIdx.y;
  const int64_t length = lengths[b];
  if (length < 0 || length > S) __trap();
  if (column >= width || length == 0 || length % block != 0) return;
  MeanPiece<T, n>(x_BSC + (b * S + length - block) * width + column, block, width,
                  mean_BRC + (b * R + length / block - 1) * width + column);
}

}  // namespace

void BlockMeanForward(Stream& stream, const BlockMeanForwardArgs& args) {
  if (args.x_NGD.size() == 0) return;
  const int64_t tokens = args.x_NGD.dim(0), width = args.x_NGD.size() / tokens;
  const int64_t size = args.mean_CGD.size();
  DispatchType("block_mean", args.x_NGD.dtype(), [&]<class T>() {
    DispatchPieces<T>(width, {args.x_NGD, args.mean_CGD}, [&]<int n>() {
      Forward<T, n><<<Blocks(size, kMeanThreads * n), kMeanThreads, 0, Handle(stream)>>>(
          size, width, args.block, tokens, Data<int32_t>(args.documents.positions()),
          Data<T>(args.x_NGD), Data<T>(args.mean_CGD));
    });
  });
  CheckLaunch("block_mean");
}

void BlockMeanBackward(Stream& stream, const BlockMeanBackwardArgs& args) {
  const int64_t size = args.dx_NGD.size();
  if (size == 0) return;
  const int64_t tokens = args.dx_NGD.dim(0), width = size / tokens;
  DispatchType("block_mean", args.dx_NGD.dtype(), [&]<class T>() {
    DispatchPieces<T>(width, {args.dmean_CGD, args.dx_NGD}, [&]<int n>() {
      Backward<T, n><<<Blocks(size, 256 * n), 256, 0, Handle(stream)>>>(
          size, width, args.block, tokens, Data<int32_t>(args.documents.positions()),
          Data<T>(args.dmean_CGD), Data<T>(args.dx_NGD), args.accumulate_dx);
    });
  });
  CheckLaunch("block_mean backward");
}

void BlockMeanStep(Stream& stream, const BlockMeanStepArgs& args) {
  const int64_t B = args.x_BSC.dim(0), S = args.x_BSC.dim(1), R = args.mean_BRC.dim(1);
  if (args.x_BSC.size() == 0) return;
  const int64_t width = args.x_BSC.size() / (B * S);
  DispatchType("block_mean_step", args.x_BSC.dtype(), [&]<class T>() {
    DispatchPieces<T>(width, {args.x_BSC, args.mean_BRC}, [&]<int n>() {
      const dim3 grid(Blocks(width, 256 * n), static_cast<unsigned>(B));
      Step<T, n><<<grid, 256, 0, Handle(stream)>>>(width, args.block, S, R,
                                                   Data<int32_t>(args.lengths_B),
                                                   Data<T>(args.x_BSC), Data<T>(args.mean_BRC));
    });
  });
  CheckLaunch("block_mean_step");
}

}  // namespace lt2::cuda
