#include "core/cuda.h"

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
  LT2_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, cudaStreamPerThread));
  cudaPointerAttributes target;
  LT2_CUDA_CHECK(cudaPointerGetAttributes(&target, to));
  if (target.type != cudaMemoryTypeDevice) Synchronize();
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

}  // namespace lt2::cuda
