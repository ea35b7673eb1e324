#include "kernels/cuda/scratch.h"

#include <algorithm>
#include <vector>

#include "core/allocator.h"

namespace lt2::cuda {

void* Scratch(const Stream& stream, int64_t bytes) {
  constexpr int64_t kLeast = int64_t{1} << 20;
  // Those that were outgrown stay: a recorded step goes on using them.
  thread_local std::vector<Tensor> buffers;
  int64_t most = kLeast / 2;
  for (const Tensor& buffer : buffers) {
    if (buffer.device() != stream.device) continue;
    if (buffer.bytes() >= bytes) return buffer.raw();
    most = std::max(most, buffer.bytes());
  }
  const PoolScope common(nullptr);
  return buffers.emplace_back(Tensor::Empty({std::max(bytes, 2 * most)}, DType::kU8, stream.device))
      .raw();
}

}  // namespace lt2::cuda
