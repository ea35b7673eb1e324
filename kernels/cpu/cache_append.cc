#include "kernels/cache_append.h"

namespace lt2::cpu {

void CacheAppend(Stream&, const CacheAppendArgs& a) {
  const int64_t batch = a.x_BC.dim(0), capacity = a.cache_BSC.dim(1);
  const int64_t row = a.x_BC.size() / batch;
  CHECK_EQ(a.cache_BSC.size(), batch * capacity * row);
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t at = a.positions_B.data<int32_t>()[b];
    CHECK(0 <= at && at < capacity) << "row " << at << " of a cache of " << capacity;
    a.cache_BSC.Flat((b * capacity + at) * row, row).CopyFrom(a.x_BC.Flat(b * row, row));
  }
}

}  // namespace lt2::cpu
