#include "launch/memory_plan.h"

#include <algorithm>
#include <fstream>
#include <limits>

#include "absl/strings/str_format.h"
#include "core/allocator.h"
#include "core/cost_log.h"
#include "core/cuda.h"
#include "core/strings.h"

namespace lt2 {
namespace {

std::string Size(double bytes) {
  return bytes >= 1e10 ? absl::StrFormat("%.1f GiB", bytes / (1 << 30))
                       : absl::StrFormat("%.1f MiB", bytes / (1 << 20));
}

}  // namespace

std::string MemoryPlan::ToString() const {
  return absl::StrFormat(
      "%.2f M parameters, %.3g model FLOPs per token; tensor memory of a rank: %s at peak, of "
      "which "
      "%s stay between steps",
      static_cast<double>(parameters) / 1e6, model_flops_per_token,
      Size(static_cast<double>(peak_bytes)), Size(static_cast<double>(persistent_bytes)));
}

MemoryPlan PlanMemory(StepOptions options, const Mesh& mesh, int rank, bool diagnostics) {
  return PlanMemory(std::move(options), mesh, MakeMetaGroups(mesh, rank), diagnostics);
}

MemoryPlan PlanMemory(StepOptions options, const Mesh& mesh, const RankGroups& groups,
                      bool diagnostics) {
  options.device = {Backend::kMeta};
  const auto enter = [](int64_t phase) {
    if (CostLog* log = CostLog::Current()) log->set_phase(static_cast<int>(phase));
  };
  enter(-1);
  const MetaMeter meter;
  TrainStep step(options, mesh, groups);
  MemoryPlan plan;
  plan.persistent_bytes = meter.memory().live;
  for (const Param* param : step.model().params().all()) {
    const bool apart = !param->value.SharesStorageWith(param->master);
    plan.weight_bytes += param->value.bytes() + (apart ? param->master.bytes() : 0);
  }
  plan.gradient_bytes = step.reducer().bytes();
  plan.moment_bytes = plan.persistent_bytes - plan.weight_bytes - plan.gradient_bytes;
  int64_t micro_batch = 0;
  step.OnForwardDone([&] {
    enter(2 * micro_batch + 1);
    const int64_t held = meter.memory().live - plan.persistent_bytes;
    plan.activation_bytes = std::max(plan.activation_bytes, held);
  });
  step.Begin(diagnostics);
  LoopDiagnostics seen;
  for (; micro_batch < options.micro_batches; ++micro_batch) {
    enter(2 * micro_batch);
    step.MicroBatch({}, diagnostics && micro_batch == 0 ? &seen : nullptr);
  }
  enter(2 * micro_batch);
  step.Finish({.step = 1});
  plan.peak_bytes = meter.memory().peak;
  plan.step_flops = meter.flops();
  LanguageModel whole(options.model);
  plan.parameters = whole.params().elements();
  plan.model_flops_per_token = 3 * whole.FlopsPerToken(options.sequence);
  return plan;
}

std::vector<PolicyPlan> PlanPolicies(StepOptions options, const Mesh& mesh) {
  std::vector<PolicyPlan> plans;
  for (const RecomputePolicy policy : kRecomputePolicies) {
    options.recompute = policy;
    plans.push_back({policy, PlanMost(options, mesh, /*diagnostics=*/true)});
  }
  return plans;
}

MemoryPlan PlanMost(const StepOptions& options, const Mesh& mesh, bool diagnostics) {
  const auto plan = [&](int cp) {
    return PlanMemory(options, mesh, mesh.RankOf(0, 0, cp, mesh.tp - 1), diagnostics);
  };
  MemoryPlan most = plan(mesh.cp - 1);
  if (options.row_tiles == 1 || mesh.cp == 1) return most;
  // The last one keeps the most keys, the first one owns what they would share.
  MemoryPlan first = plan(0);
  return first.peak_bytes > most.peak_bytes ? first : most;
}

absl::StatusOr<RecomputePolicy> ChooseRecompute(const std::vector<PolicyPlan>& plans,
                                                int64_t budget_bytes) {
  const PolicyPlan* best = nullptr;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const PolicyPlan& plan : plans) {
    least = std::min(least, plan.memory.peak_bytes);
    if (plan.memory.peak_bytes > budget_bytes) continue;
    const bool better = best == nullptr || plan.memory.step_flops < best->memory.step_flops;
    if (better) best = &plan;
  }
  if (best != nullptr) return best->policy;
  return absl::ResourceExhaustedError(StrCat(
      "parallel.recompute: no policy fits ", Size(static_cast<double>(budget_bytes)),
      " a rank; the leanest needs ", Size(static_cast<double>(least)),
      ". Lower batch.micro_batch or data.sequence, or use more ranks with parallel.zero = 2"));
}

int64_t MemoryBudget(Device device, int local_ranks) {
  if (device.backend == Backend::kCuda) return cuda::FreeMemory(device.index);
  int64_t available = int64_t{1} << 62;  // unknown: no limit
  std::ifstream file("/proc/meminfo");
  std::string key, unit;
  int64_t kilobytes = 0;
  while (file >> key >> kilobytes >> unit) {
    if (key == "MemAvailable:") available = kilobytes * 1024;
    file.ignore(1000, '\n');
  }
  int64_t limit = 0, used = 0;  // "max" where there is no limit: not a number
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> limit &&
      std::ifstream("/sys/fs/cgroup/memory.current") >> used) {
    available = std::min(available, std::max<int64_t>(0, limit - used));
  }
  return available / local_ranks;
}

absl::Status CheckFits(const MemoryPlan& plan, int64_t budget_bytes) {
  if (plan.peak_bytes <= budget_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat(
      "a step needs ", Size(static_cast<double>(plan.peak_bytes)), " a rank, of which ",
      Size(static_cast<double>(plan.persistent_bytes)),
      " are weights, gradients and moments; there are ", Size(static_cast<double>(budget_bytes)),
      ". Lower batch.micro_batch, set parallel.recompute = \"auto\", or use more ranks with "
      "parallel.zero = 2"));
}

}  // namespace lt2
