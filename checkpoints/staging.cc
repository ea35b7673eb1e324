#include "checkpoints/staging.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "core/strings.h"

namespace lt2 {
namespace {

// Copies from a GPU, some at a time: a thread that fills the driver's queue of copies holds up
// every thread that launches kernels until there is room in it again. Done when destroyed.
class QueuedCopies {
 public:
  ~QueuedCopies() { Finish(); }
  void Add(std::byte* to, const Tensor& from) {
    for (int64_t at = 0; at < from.bytes(); at += kMostBytes) {
      const int64_t bytes = std::min(kMostBytes, from.bytes() - at);
      if (copies_ == kMostCopies || bytes_ + bytes > kMostBytes) Finish();
      ++copies_;
      bytes_ += bytes;
      cuda::CopyQueued(to + at, static_cast<const std::byte*>(from.raw()) + at, bytes);
    }
  }

 private:
  static constexpr int kMostCopies = 64;
  static constexpr int64_t kMostBytes = int64_t{256} << 20;  // 5 ms

  void Finish() {
    if (copies_ > 0) cuda::Synchronize();
    copies_ = 0;
    bytes_ = 0;
  }

  int copies_ = 0;
  int64_t bytes_ = 0;
};

}  // namespace

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
  QueuedCopies queued;
  for (const TensorPiece& piece : pieces) {
    data.push_back(to);
    const int64_t bytes = piece.tensor.bytes();
    if (piece.tensor.on_gpu()) {
      queued.Add(to, piece.tensor);
    } else if (bytes > 0) {
      std::memcpy(to, piece.tensor.raw(), bytes);
    }
    to += bytes;
  }
  return data;
}

}  // namespace lt2
