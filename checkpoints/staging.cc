#include "checkpoints/staging.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "core/strings.h"

namespace lt2 {

int64_t TotalBytes(std::span<const TensorPiece> pieces) {
  int64_t bytes = 0;
  for (const TensorPiece& piece : pieces) bytes += piece.tensor.bytes();
  return bytes;
}

bool OnGpu(std::span<const TensorPiece> pieces) {
  return std::ranges::any_of(pieces, [](const auto& piece) { return piece.tensor.on_gpu(); });
}

Staging::~Staging() { Release(); }

void Staging::Release() {
  if (memory_ == nullptr) return;
  if (pinned_) {
    cuda::PinnedMemory().Free(memory_);
  } else {
    delete[] memory_;
  }
  memory_ = nullptr;
  capacity_ = 0;
}

absl::Status Staging::Reserve(std::span<const TensorPiece> pieces) {
  const int64_t bytes = TotalBytes(pieces);
  if (bytes <= capacity_) return absl::OkStatus();
  Release();
  pinned_ = OnGpu(pieces);
  memory_ = pinned_ ? static_cast<std::byte*>(cuda::PinnedMemory().Allocate(bytes))
                    : new (std::nothrow) std::byte[bytes];
  if (memory_ == nullptr) {
    return absl::ResourceExhaustedError(
        StrCat("no memory for a copy of the state (", bytes,
               " bytes) to save from; set checkpoint.async = false"));
  }
  capacity_ = bytes;
  return absl::OkStatus();
}

void Staging::Mark(std::span<const TensorPiece> pieces) {
  if (OnGpu(pieces)) queued_.Record();
}

std::vector<const std::byte*> Staging::Copy(std::span<const TensorPiece> pieces) {
  CHECK_LE(TotalBytes(pieces), capacity_);
  const auto on_gpu =
      std::ranges::find_if(pieces, [](const auto& piece) { return piece.tensor.on_gpu(); });
  if (on_gpu != pieces.end()) {
    cuda::UseDevice(on_gpu->tensor.device().index);
    queued_.Wait();
  }
  std::vector<const std::byte*> data;
  std::byte* to = memory_;
  for (const TensorPiece& piece : pieces) {
    data.push_back(to);
    const int64_t bytes = piece.tensor.bytes();
    if (bytes == 0) continue;
    if (piece.tensor.on_gpu()) {
      cuda::CopyQueued(to, piece.tensor.raw(), bytes);
    } else {
      std::memcpy(to, piece.tensor.raw(), bytes);
    }
    to += bytes;
  }
  if (on_gpu != pieces.end()) cuda::Synchronize();
  return data;
}

}  // namespace lt2
