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
// A name that no other GPU has, on this host or another, without spaces.
std::string Identity(int index);
int64_t FreeMemory(int index);  // bytes

// The calling thread's work goes to this GPU from now on.
void UseDevice(int index);
std::unique_ptr<MemorySource> DeviceMemory(int index);

// Between host and GPU or on the GPU, after what the thread has queued. Host memory may be reused
// when the call returns.
void Copy(void* to, const void* from, int64_t bytes);
void Zero(void* at, int64_t bytes);
// The same, without waiting even where one side is host memory: that must be PinnedMemory, and left
// alone until the copy is done.
void CopyQueued(void* to, const void* from, int64_t bytes);
// Returns when what the thread has queued is done; dies with what went wrong.
void Synchronize();

// Host memory that copies read and write while the host goes on.
CachingAllocator& PinnedMemory();

// A place in the thread's queue.
class Event {
 public:
  Event() = default;
  ~Event();
  Event(const Event&) = delete;
  void Record();
  // Returns when everything before the last Record is done; at once without one.
  void Wait();

 private:
  void* handle_ = nullptr;  // cudaEvent_t
};

// Work that was queued once, kept to be queued again as one: the same kernels on the same memory.
class Graph {
 public:
  Graph() = default;
  ~Graph();
  Graph(const Graph&) = delete;
  // What the thread queues between the two is kept and does not run. No host memory may be copied
  // from or to, and nothing may wait.
  void BeginCapture();
  void EndCapture();
  bool captured() const { return handle_ != nullptr; }
  int64_t nodes() const { return nodes_; }
  void Launch();

 private:
  void* handle_ = nullptr;  // cudaGraphExec_t
  int64_t nodes_ = 0;
};

}  // namespace lt2::cuda

namespace lt2 {

// Returns when what the thread has queued on the stream's device is done.
inline void WaitFor(const Stream& stream) {
  if (stream.device.backend == Backend::kCuda) cuda::Synchronize();
}

}  // namespace lt2
