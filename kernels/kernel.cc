#include "kernels/kernel.h"

#include <cstdlib>

#include "core/allocator.h"
#include "core/cost_log.h"

namespace lt2 {

void CountOnly(const Cost& cost) {
  if (auto counters = MetaMeter::Current()) {
    counters->flops += cost.flops;
    counters->bytes_moved += cost.bytes;
  }
  if (CostLog* log = CostLog::Current()) log->AddKernel(cost.flops, cost.bytes);
}

void DieNoBackend(const char* kernel, Device device) {
  CHECK(false) << kernel << " has no implementation for backend " << device;
  std::abort();
}

}  // namespace lt2
