// From our streams to CUDA's.
#pragma once

#include <cuda_runtime_api.h>

#include "core/cuda.h"

namespace lt2::cuda {

// Where the calling thread's work on the stream's device is queued.
inline cudaStream_t Handle(const Stream& stream) {
  UseDevice(stream.device.index);
  return stream.handle != nullptr ? static_cast<cudaStream_t>(stream.handle) : cudaStreamPerThread;
}

}  // namespace lt2::cuda
