#include "kernels/checksum.h"

#include <cstring>

namespace lt2::cpu {

void Checksums(Stream&, const ChecksumsArgs& args) {
  for (size_t i = 0; i < args.x.size(); ++i) {
    const auto* words = static_cast<const uint32_t*>(args.x[i].raw());
    const int64_t count = args.x[i].bytes() / 4;
    uint64_t sum = 0;
#pragma omp parallel for simd reduction(+ : sum)
    for (int64_t w = 0; w < count; ++w) sum += (2 * static_cast<uint64_t>(w) + 1) * words[w];
    std::memcpy(args.sums.data<int32_t>() + 2 * i, &sum, 8);
  }
}

}  // namespace lt2::cpu
