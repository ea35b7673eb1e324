#include "kernels/cuda/double_sums.cuh"
#include "kernels/cuda/piece.cuh"
#include "kernels/cuda/pieces_table.cuh"
#include "kernels/cuda/scratch.h"
#include "kernels/squared_norm.h"

namespace lt2::cuda {
namespace {

constexpr int kMost = 512;
constexpr int64_t kChunkElements = 16384;
constexpr int kAtOnce = 4;  // pieces read at a time

template <class T>
struct Squared {
  const T* x;
  int64_t size;
  bool wide;  // aligned
};
template <class T>
using Table = PiecesTable<Squared<T>, kMost>;

template <class T, int n>
__device__ double SumOfChunk(const T* x, int64_t begin, int64_t end) {
  double sum = 0;
  for (int64_t first = begin + int64_t{threadIdx.x} * n; first < end;
       first += int64_t{kAtOnce} * 256 * n) {
    Piece<n> piece[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int64_t i = first + j * 256 * n;
      piece[j] = {};
      if (i < end) piece[j] = Load<n>(x + i);
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
#pragma unroll
      for (int e = 0; e < n; ++e) sum += double{piece[j][e]} * double{piece[j][e]};
    }
  }
  return sum;
}

template <class T>
__global__ void __launch_bounds__(256)
    SumChunks(const __grid_constant__ Table<T> table, double* of_chunk) {
  const int chunk = blockIdx.x, i = table.Find(chunk);
  const Squared<T>& piece = table.entries[i];
  const int64_t begin = (chunk - table.first_chunk[i]) * kChunkElements;
  const int64_t end = min(piece.size, begin + kChunkElements);
  const double sum = piece.wide ? SumOfChunk<T, kWide<T>>(piece.x, begin, end)
                                : SumOfChunk<T, 1>(piece.x, begin, end);
  const double total = BlockSumF64(sum);
  if (threadIdx.x == 0) of_chunk[chunk] = total;
}

template <class T>
__global__ void __launch_bounds__(256)
    SumPieces(const __grid_constant__ Table<T> table, const double* of_chunk, double* sums) {
  double sum = 0;
  const int end = table.first_chunk[blockIdx.x + 1];
  for (int i = table.first_chunk[blockIdx.x] + static_cast<int>(threadIdx.x); i < end; i += 256) {
    sum += of_chunk[i];
  }
  sum = BlockSumF64(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

template <class T>
void Run(const Stream& stream, const SquaredNormsArgs& args) {
  const auto make = [&](int64_t i) {
    const Tensor& x = args.x[i];
    const bool aligned = reinterpret_cast<uintptr_t>(x.raw()) % 16 == 0;
    return Squared<T>{
        .x = Data<T>(x), .size = x.size(), .wide = aligned && x.size() % kWide<T> == 0};
  };
  const auto size = [&](int64_t i) { return args.x[i].size(); };
  ForEachTable<Squared<T>, kMost>(static_cast<int64_t>(args.x.size()), kChunkElements, make, size,
                                  [&](const Table<T>& table, int64_t first) {
                                    const int chunks = table.first_chunk[table.count];
                                    double* of_chunk = ScratchFor<double>(stream, chunks);
                                    if (chunks > 0) {
                                      SumChunks<T>
                                          <<<chunks, 256, 0, Handle(stream)>>>(table, of_chunk);
                                      CheckLaunch("squared_norms");
                                    }
                                    SumPieces<T><<<table.count, 256, 0, Handle(stream)>>>(
                                        table, of_chunk, Data<double>(args.sums) + first);
                                    CheckLaunch("squared_norms");
                                  });
}

}  // namespace

void SquaredNorms(Stream& stream, const SquaredNormsArgs& args) {
  CHECK_EQ(args.sums.size(), static_cast<int64_t>(args.x.size()));
  if (args.x.empty()) return;
  DispatchType("squared_norms", args.x[0].dtype(), [&]<class T>() { Run<T>(stream, args); });
}

}  // namespace lt2::cuda
