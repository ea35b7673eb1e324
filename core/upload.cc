#include "core/upload.h"

namespace lt2 {

Upload::Staging::Staging(int64_t bytes) {
  for (void*& buffer : memory) buffer = cuda::PinnedMemory().Allocate(bytes);
}

Upload::Staging::~Staging() {
  for (cuda::Event& event : copied) event.Wait();
  for (void* buffer : memory) cuda::PinnedMemory().Free(buffer);
}

Upload::Upload(const Shape& shape, DType dtype, Device device)
    : tensor_(Tensor::Empty(shape, dtype, device)) {
  if (tensor_.on_gpu()) staging_ = std::make_shared<Staging>(tensor_.bytes());
}

void* Upload::NextBytes() {
  if (!staging_) return tensor_.raw();
  staging_->copied[staging_->turn].Wait();
  return staging_->memory[staging_->turn];
}

void Upload::Send() {
  if (!staging_) return;
  cuda::CopyQueued(tensor_.raw(), staging_->memory[staging_->turn], tensor_.bytes());
  staging_->copied[staging_->turn].Record();
  staging_->turn ^= 1;
}

}  // namespace lt2
