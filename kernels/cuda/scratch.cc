#include "kernels/cuda/scratch.h"

#include <algorithm>

#include "kernels/cuda/release_scratch.h"

namespace lt2::cuda {
namespace {

thread_local Tensor buffer;

}  // namespace

void* Scratch(const Stream& stream, int64_t bytes) {
  ReleaseScratch();  // first: the new one may take its place
  buffer = Tensor::Empty({std::max<int64_t>(bytes, 1)}, DType::kU8, stream.device);
  return buffer.raw();
}

void ReleaseScratch() { buffer = {}; }

}  // namespace lt2::cuda
