// The GPU in a build without CUDA: there is none.
#include <cstdlib>

#include "core/check.h"
#include "core/cuda.h"

namespace lt2::cuda {
namespace {

[[noreturn]] void Die() {
  CHECK(false) << "this build has no CUDA: configure with -DLT2_CUDA=ON";
  std::abort();
}

}  // namespace

bool Built() { return false; }
int DeviceCount() { return 0; }
std::string Describe(int) { Die(); }
std::string Identity(int) { Die(); }
int64_t FreeMemory(int) { Die(); }
void UseDevice(int) { Die(); }
std::unique_ptr<MemorySource> DeviceMemory(int) { Die(); }
void Copy(void*, const void*, int64_t) { Die(); }
void Zero(void*, int64_t) { Die(); }
void CopyQueued(void*, const void*, int64_t) { Die(); }
void Synchronize() { Die(); }
CachingAllocator& PinnedMemory() { Die(); }
Event::~Event() = default;
void Event::Record() { Die(); }
void Event::Wait() { Die(); }
Graph::~Graph() = default;
void Graph::BeginCapture() { Die(); }
void Graph::EndCapture() { Die(); }
void Graph::Launch() { Die(); }

}  // namespace lt2::cuda
