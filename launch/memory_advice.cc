#include "launch/memory_advice.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "core/allocator.h"
#include "core/cuda.h"
#include "core/strings.h"

namespace lt2 {
namespace {

std::string Gib(int64_t bytes) {
  return absl::StrFormat("%.2f GiB", static_cast<double>(bytes) / (1 << 30));
}

std::string ByKind(const MemoryPlan& plan) {
  return StrCat("by the plan a step holds weights ", Gib(plan.weight_bytes), ", gradients ",
                Gib(plan.gradient_bytes), ", moments ", Gib(plan.moment_bytes), ", activations ",
                Gib(plan.activation_bytes), ", what comes and goes ", Gib(plan.workspace_bytes()),
                ", together ", Gib(plan.peak_bytes));
}

}  // namespace

std::string MemoryAdvice(const StepOptions& options, const Mesh& mesh, int rank,
                         int64_t budget_bytes) {
  const MemoryPlan now = PlanMemory(options, mesh, rank);
  // What did not fit although it was planned to is not advised again.
  const int64_t most = std::min(budget_bytes, now.peak_bytes - now.peak_bytes / 16);
  StepOptions other = options;
  for (; other.micro_batch >= 1; other.micro_batch /= 2) {
    for (const PolicyPlan& plan : PlanPolicies(other, mesh)) {
      if (plan.memory.peak_bytes > most) continue;
      return StrCat(ByKind(now), "; batch.micro_batch = ", other.micro_batch,
                    " with parallel.recompute = \"", Name(plan.policy), "\" would need ",
                    Gib(plan.memory.peak_bytes));
    }
  }
  return StrCat(ByKind(now), "; no batch.micro_batch and parallel.recompute fit ",
                Gib(budget_bytes),
                ": lower data.sequence, or use more ranks with parallel.zero = 2");
}

void GiveMemoryAdvice(const StepOptions& options, const Mesh& mesh, int rank) {
  if (options.device.backend != Backend::kCuda) return;
  CachingAllocator& memory = CachingAllocator::Of(options.device);
  memory.SetAdvice([&memory, options, mesh, rank] {
    const int64_t free = cuda::FreeMemory(options.device.index);
    return MemoryAdvice(options, mesh, rank, memory.stats().reserved + free);
  });
}

}  // namespace lt2
