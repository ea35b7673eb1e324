#include "kernels/kernel.h"

#include <cstdlib>

#include "core/allocator.h"

namespace lt2 {

void CountOnly(const Cost& cost) {
  if (auto counters = MetaMeter::Current()) {
    counters->flops += cost.flops;
    counters->bytes_moved += cost.bytes;
  }
}

void DieNoBackend(const char* kernel, Device device) {
  CHECK(false) << kernel << " has no implementation for backend " << device;
  std::abort();
}

}  // namespace lt2
