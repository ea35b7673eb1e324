// Host memory that a save writes from while the run goes on.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "checkpoints/shard_file.h"
#include "core/cuda.h"

namespace lt2 {

class Staging {
 public:
  Staging() = default;
  ~Staging();
  Staging(const Staging&) = delete;

  // Memory for these pieces, page-locked if they lie on a GPU; kept, and only ever grown.
  // ResourceExhausted if there is none.
  absl::Status Reserve(std::span<const TensorPiece> pieces);
  int64_t bytes() const { return capacity_; }

  // Notes what the calling thread has queued so far, which Copy waits for.
  void Mark(std::span<const TensorPiece> pieces);
  // Copies the pieces, from any thread; where each is then.
  std::vector<const std::byte*> Copy(std::span<const TensorPiece> pieces);

 private:
  void Release();

  std::byte* memory_ = nullptr;
  int64_t capacity_ = 0;
  bool pinned_ = false;
  cuda::Event queued_;
};

int64_t TotalBytes(std::span<const TensorPiece> pieces);
// Whether any of them lies on a GPU.
bool OnGpu(std::span<const TensorPiece> pieces);

}  // namespace lt2
