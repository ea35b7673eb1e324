#include "model/mixers/common/fill_cache.h"

#include "kernels/block_mean.h"

namespace lt2 {

void FillCache(const Tensor& rows, const Documents& documents, int64_t block, const Tensor& cache) {
  const Tensor cu_host = documents.cu_seqlens().To({Backend::kCpu});
  const auto cu = cu_host.span<int32_t>();
  const int64_t width = rows.size() / rows.dim(0), capacity = cache.dim(1);
  for (int64_t d = 0; d < documents.count(); ++d) {
    const int64_t begin = BlockRow(cu[d], block), count = (cu[d + 1] - cu[d]) / block;
    CHECK_LE(count, capacity) << "a prompt longer than the cache";
    if (count == 0) continue;
    cache.Flat(d * capacity * width, count * width)
        .CopyFrom(rows.Flat(begin * width, count * width));
  }
}

}  // namespace lt2
