#include "kernels/cuda/scratch.h"

#include <algorithm>

namespace lt2::cuda {

void* Scratch(const Stream& stream, int64_t bytes) {
  thread_local Tensor buffer;
  buffer = {};  // first: the new one may take its place
  buffer = Tensor::Empty({std::max<int64_t>(bytes, 1)}, DType::kU8, stream.device);
  return buffer.raw();
}

}  // namespace lt2::cuda
