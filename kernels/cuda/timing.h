// For choices that are measured on the GPU: events, memory beside the allocator's, and how long
// something takes when nothing it reads is near.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/cuda/check.h"

namespace lt2::cuda {

// Memory beside the allocator's, so that a step's peak does not show it. Null where there is none.
class Lent {
 public:
  explicit Lent(int64_t bytes) {
    if (cudaMalloc(&data_, bytes) != cudaSuccess) {
      cudaGetLastError();  // not an error: the caller does without
      data_ = nullptr;
    }
  }
  ~Lent() { cudaFree(data_); }
  Lent(const Lent&) = delete;
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

inline bool BeingCaptured(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  LT2_CUDA_CHECK(cudaStreamIsCapturing(stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

inline float MedianOf(std::vector<float> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Times what a stream runs, each run after a write larger than the caches: in a step nothing of an
// operand is near.
class Timing {
 public:
  explicit Timing(cudaStream_t stream) : stream_(stream), flush_(kBeyondCaches) {
    LT2_CUDA_CHECK(cudaEventCreate(&begin_));
    LT2_CUDA_CHECK(cudaEventCreate(&end_));
  }
  ~Timing() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  Timing(const Timing&) = delete;
  bool possible() const { return flush_.data() != nullptr; }

  // Milliseconds; negative where fn, which queues the work, says that it does not run.
  template <class Fn>
  float Once(const Fn& fn) const {
    Flush();
    LT2_CUDA_CHECK(cudaEventRecord(begin_, stream_));
    if (!fn()) return -1;
    return SinceBegin();
  }
  // Milliseconds a run, its flush included, of so many runs one after the other: under steady load
  // a GPU's power is what limits it, and ranks what a single run ranks otherwise.
  template <class Fn>
  float Sustained(int runs, const Fn& fn) const {
    LT2_CUDA_CHECK(cudaEventRecord(begin_, stream_));
    for (int run = 0; run < runs; ++run) {
      Flush();
      if (!fn()) return -1;
    }
    return SinceBegin() / static_cast<float>(runs);
  }

 private:
  void Flush() const { LT2_CUDA_CHECK(cudaMemsetAsync(flush_.data(), 0, kBeyondCaches, stream_)); }
  float SinceBegin() const {
    LT2_CUDA_CHECK(cudaEventRecord(end_, stream_));
    LT2_CUDA_CHECK(cudaEventSynchronize(end_));
    float milliseconds = 0;
    LT2_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin_, end_));
    return milliseconds;
  }

  static constexpr int64_t kBeyondCaches = int64_t{96} << 20;
  const cudaStream_t stream_;
  const Lent flush_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace lt2::cuda
