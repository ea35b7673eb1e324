#include "kernels/checksum.h"

#include <cstring>

namespace lt2::reference {

void Checksums(Stream&, const ChecksumsArgs& args) {
  for (size_t i = 0; i < args.x.size(); ++i) {
    const auto* bytes = static_cast<const std::byte*>(args.x[i].raw());
    uint64_t sum = 0;
    for (int64_t w = 0; w < args.x[i].bytes() / 4; ++w) {
      uint32_t word;
      std::memcpy(&word, bytes + 4 * w, 4);
      sum += (2 * static_cast<uint64_t>(w) + 1) * word;
    }
    std::memcpy(args.sums.data<int32_t>() + 2 * i, &sum, 8);
  }
}

}  // namespace lt2::reference
