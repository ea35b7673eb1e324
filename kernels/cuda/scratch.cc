#include "kernels/cuda/scratch.h"

namespace lt2::cuda {

void* Scratch(const Stream& stream, int64_t bytes) {
  constexpr int64_t kLeast = int64_t{1} << 20;
  thread_local Tensor buffer;
  if (!buffer.defined() || buffer.device() != stream.device || buffer.bytes() < bytes) {
    buffer = {};
    buffer = Tensor::Empty({std::max(bytes, kLeast)}, DType::kU8, stream.device);
  }
  return buffer.raw();
}

}  // namespace lt2::cuda
