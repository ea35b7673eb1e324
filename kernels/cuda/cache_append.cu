#include "kernels/cache_append.h"
#include "kernels/cuda/common.cuh"

namespace lt2::cuda {
namespace {

template <class T>
void Run(const Stream& stream, const CacheAppendArgs& a) {
  const int64_t batch = a.x_BC.dim(0), capacity = a.cache_BSC.dim(1);
  if (batch == 0) return;
  const int64_t row = a.x_BC.size() / batch;
  CHECK_EQ(a.cache_BSC.size(), batch * capacity * row);
  const T* x = Data<T>(a.x_BC);
  const int32_t* positions = Data<int32_t>(a.positions_B);
  T* cache = Data<T>(a.cache_BSC);
  ForEach(stream, "cache_append", batch * row, [=] __device__(int64_t i) {
    const int64_t b = i / row, at = positions[b];
    if (0 <= at && at < capacity) cache[(b * capacity + at) * row + i % row] = x[i];
  });
}

}  // namespace

void CacheAppend(Stream& stream, const CacheAppendArgs& a) {
  DispatchType("cache_append", a.x_BC.dtype(), [&]<class T>() { Run<T>(stream, a); });
}

}  // namespace lt2::cuda
