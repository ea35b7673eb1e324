#include "kernels/cache_append.h"

namespace lt2::reference {

void CacheAppend(Stream&, const CacheAppendArgs& a) {
  const int64_t capacity = a.cache_BSC.dim(1);
  const int64_t row = a.x_BC.size() / a.x_BC.dim(0);
  for (int64_t b = 0; b < a.x_BC.dim(0); ++b) {
    const int64_t at = a.positions_B.data<int32_t>()[b];
    for (int64_t c = 0; c < row; ++c) {
      a.cache_BSC.data<double>()[(b * capacity + at) * row + c] =
          a.x_BC.data<double>()[b * row + c];
    }
  }
}

}  // namespace lt2::reference
