#include <algorithm>

#include "kernels/cuda/double_sums.cuh"
#include "kernels/cuda/piece.cuh"
#include "kernels/cuda/scratch.h"
#include "kernels/squared_norm.h"

namespace lt2::cuda {
namespace {

constexpr int kAtOnce = 4;  // pieces read at a time

template <class T, int n>
__global__ void __launch_bounds__(256) Squares(int64_t size, const T* x, double* of_block) {
  const int64_t step = int64_t{gridDim.x} * 256 * n;
  double sum = 0;
  for (int64_t first = (int64_t{blockIdx.x} * 256 + threadIdx.x) * n; first < size;
       first += kAtOnce * step) {
    Piece<n> piece[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int64_t i = first + j * step;
      piece[j] = {};
      if (i < size) piece[j] = Load<n>(x + i);
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
#pragma unroll
      for (int e = 0; e < n; ++e) sum += double{piece[j][e]} * double{piece[j][e]};
    }
  }
  sum = BlockSumF64(sum);
  if (threadIdx.x == 0) of_block[blockIdx.x] = sum;
}

template <class T>
void Run(const Stream& stream, const SquaredNormArgs& args) {
  const int64_t size = args.x.size();
  DispatchPieces<T>(size, {args.x}, [&]<int n>() {
    const int64_t blocks = std::clamp<int64_t>(Blocks(size, 256 * n * kAtOnce), 1, 1056);
    double* of_block = ScratchFor<double>(stream, blocks);
    Squares<T, n><<<blocks, 256, 0, Handle(stream)>>>(size, Data<T>(args.x), of_block);
    CheckLaunch("squared_norm");
    SumParts<<<1, 256, 0, Handle(stream)>>>(blocks, of_block, 1.0, args.accumulate,
                                            Data<double>(args.sum));
    CheckLaunch("squared_norm");
  });
}

}  // namespace

void SquaredNorm(Stream& stream, const SquaredNormArgs& args) {
  DispatchType("squared_norm", args.x.dtype(), [&]<class T>() { Run<T>(stream, args); });
}

}  // namespace lt2::cuda
