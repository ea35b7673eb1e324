#include <algorithm>

#include "kernels/checksum.h"
#include "kernels/cuda/common.cuh"

namespace lt2::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 1024;

__global__ void __launch_bounds__(kThreads)
    SumWords(const uint32_t* words, int64_t count, unsigned long long* sum) {
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  unsigned long long own = 0;
  for (int64_t w = int64_t{blockIdx.x} * kThreads + threadIdx.x; w < count; w += stride) {
    own += (2 * static_cast<unsigned long long>(w) + 1) * words[w];
  }
  for (int lanes = 16; lanes > 0; lanes /= 2) own += __shfl_xor_sync(~0u, own, lanes);
  if (threadIdx.x % 32 == 0) atomicAdd(sum, own);
}

}  // namespace

void Checksums(Stream& stream, const ChecksumsArgs& args) {
  args.sums.Zero();
  auto* const sums = reinterpret_cast<unsigned long long*>(Data<int32_t>(args.sums));
  for (size_t i = 0; i < args.x.size(); ++i) {
    const int64_t count = args.x[i].bytes() / 4;
    if (count == 0) continue;
    const int64_t blocks = std::min((count + kThreads - 1) / kThreads, kMostBlocks);
    SumWords<<<static_cast<int>(blocks), kThreads, 0, Handle(stream)>>>(
        static_cast<const uint32_t*>(args.x[i].raw()), count, sums + i);
    CheckLaunch("checksums");
  }
}

}  // namespace lt2::cuda
