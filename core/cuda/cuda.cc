#include "core/cuda.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "core/cuda/check.h"
#include "core/cuda/operator_note.h"

namespace lt2::cuda {
namespace {

class DeviceMemorySource : public MemorySource {
 public:
  explicit DeviceMemorySource(int index) : index_(index) {}
  const char* name() const override { return "GPU"; }
  void* Take(int64_t bytes) override {
    UseDevice(index_);
    void* memory = nullptr;
    const cudaError_t status = cudaMalloc(&memory, bytes);
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // reported here, not by whoever checks next
      return nullptr;
    }
    LT2_CUDA_CHECK(status);
    return memory;
  }
  void Give(void* memory, int64_t) override { LT2_CUDA_CHECK(cudaFree(memory)); }

 private:
  const int index_;
};

class PinnedMemorySource : public MemorySource {
 public:
  const char* name() const override { return "pinned host"; }
  void* Take(int64_t bytes) override {
    void* memory = nullptr;
    const cudaError_t status = cudaHostAlloc(&memory, bytes, cudaHostAllocPortable);
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      return nullptr;
    }
    LT2_CUDA_CHECK(status);
    return memory;
  }
  void Give(void* memory, int64_t) override { LT2_CUDA_CHECK(cudaFreeHost(memory)); }
};

thread_local bool capturing = false;

bool OnDevice(const void* at) {
  cudaPointerAttributes attributes;
  LT2_CUDA_CHECK(cudaPointerGetAttributes(&attributes, at));
  return attributes.type == cudaMemoryTypeDevice;
}

}  // namespace

bool Built() { return true; }

int DeviceCount() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return count;
}

std::string Describe(int index) {
  cudaDeviceProp properties;
  LT2_CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
  int driver = 0;
  LT2_CUDA_CHECK(cudaDriverGetVersion(&driver));
  return absl::StrCat(properties.name, ", ", properties.totalGlobalMem >> 30, " GiB, driver ",
                      driver / 1000, ".", driver % 1000 / 10);
}

std::string Identity(int index) {
  cudaDeviceProp properties;
  LT2_CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
  return absl::BytesToHexString({properties.uuid.bytes, sizeof(properties.uuid.bytes)});
}

int64_t FreeMemory(int index) {
  UseDevice(index);
  size_t free = 0, total = 0;
  LT2_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return static_cast<int64_t>(free);
}

void UseDevice(int index) {
  thread_local int current = -1;
  if (index == current) return;
  LT2_CUDA_CHECK(cudaSetDevice(index));
  current = index;
}

std::unique_ptr<MemorySource> DeviceMemory(int index) {
  return std::make_unique<DeviceMemorySource>(index);
}

void Copy(void* to, const void* from, int64_t bytes) {
  if (bytes == 0) return;
  CHECK(!capturing || (OnDevice(to) && OnDevice(from)))
      << "a copy between host and GPU of " << bytes << " bytes inside a recorded step";
  CopyQueued(to, from, bytes);
  if (!OnDevice(to)) Synchronize();
}

void CopyQueued(void* to, const void* from, int64_t bytes) {
  LT2_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, cudaStreamPerThread));
}

void Zero(void* at, int64_t bytes) {
  if (bytes > 0) LT2_CUDA_CHECK(cudaMemsetAsync(at, 0, bytes, cudaStreamPerThread));
}

void Synchronize() {
  const cudaError_t status = cudaStreamSynchronize(cudaStreamPerThread);
  CHECK(status == cudaSuccess) << "what was queued on the GPU failed: "
                               << cudaGetErrorString(status) << ". The last launched was "
                               << OperatorNote()
                               << "; with CUDA_LAUNCH_BLOCKING=1 it is the one that failed";
}

CachingAllocator& PinnedMemory() {
  static auto* pinned = new CachingAllocator(std::make_unique<PinnedMemorySource>());
  return *pinned;
}

Event::~Event() {
  if (handle_ != nullptr) LT2_CUDA_CHECK(cudaEventDestroy(static_cast<cudaEvent_t>(handle_)));
}

void Event::Record() {
  if (handle_ == nullptr) {
    cudaEvent_t event = nullptr;
    LT2_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    handle_ = event;
  }
  LT2_CUDA_CHECK(cudaEventRecord(static_cast<cudaEvent_t>(handle_), cudaStreamPerThread));
}

void Event::Wait() {
  if (handle_ != nullptr) LT2_CUDA_CHECK(cudaEventSynchronize(static_cast<cudaEvent_t>(handle_)));
}

Graph::~Graph() {
  if (handle_ == nullptr) return;
  LT2_CUDA_CHECK(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(handle_)));
}

void Graph::BeginCapture() {
  CHECK(!capturing && !captured()) << "a graph is recorded once, and one at a time";
  // Relaxed: memory may be taken meanwhile, here and by other threads.
  LT2_CUDA_CHECK(cudaStreamBeginCapture(cudaStreamPerThread, cudaStreamCaptureModeRelaxed));
  capturing = true;
}

void Graph::EndCapture() {
  capturing = false;
  cudaGraph_t graph = nullptr;
  LT2_CUDA_CHECK(cudaStreamEndCapture(cudaStreamPerThread, &graph));
  size_t nodes = 0;
  LT2_CUDA_CHECK(cudaGraphGetNodes(graph, nullptr, &nodes));
  nodes_ = static_cast<int64_t>(nodes);
  cudaGraphExec_t executable = nullptr;
  LT2_CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
  LT2_CUDA_CHECK(cudaGraphDestroy(graph));
  LT2_CUDA_CHECK(cudaGraphUpload(executable, cudaStreamPerThread));
  handle_ = executable;
}

void Graph::Launch() {
  CHECK(captured());
  LT2_CUDA_CHECK(cudaGraphLaunch(static_cast<cudaGraphExec_t>(handle_), cudaStreamPerThread));
}

}  // namespace lt2::cuda
