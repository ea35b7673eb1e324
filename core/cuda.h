// The GPU as the rest of the program sees it: memory, copies, and one queue of work a thread.
//
// A rank is a thread, and its work on a GPU is ordered on the thread's own stream
// (cudaStreamPerThread): memory that is freed and handed out again needs no events, and a step can
// be captured. In builds without CUDA there are no devices and everything else dies.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/allocator.h"
#include "core/device.h"

namespace lt2::cuda {

bool Built();       // with CUDA
int DeviceCount();  // 0 without a GPU or a driver
// "NVIDIA H200, 140 GiB, driver 13.0"
std::string Describe(int index);
int64_t FreeMemory(int index);  // bytes

// The calling thread's work goes to this GPU from now on.
void UseDevice(int index);
std::unique_ptr<MemorySource> DeviceMemory(int index);

// Between host and GPU or on the GPU, after what the thread has queued. Host memory may be reused
// when the call returns.
void Copy(void* to, const void* from, int64_t bytes);
void Zero(void* at, int64_t bytes);
// Returns when what the thread has queued is done; dies with what went wrong.
void Synchronize();

}  // namespace lt2::cuda

namespace lt2 {

// Returns when what the thread has queued on the stream's device is done.
inline void WaitFor(const Stream& stream) {
  if (stream.device.backend == Backend::kCuda) cuda::Synchronize();
}

}  // namespace lt2
