#include "launch/bench.h"

#include <omp.h>

#include <algorithm>

#include "core/allocator.h"
#include "core/cuda.h"
#include "core/philox.h"
#include "core/status_macros.h"
#include "core/strings.h"
#include "core/trace.h"
#include "kernels/gemm.h"
#include "launch/bench_target.h"
#include "launch/environment.h"
#include "launch/memory_plan.h"

namespace lt2 {
namespace {

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

template <class Fn>
double MedianSeconds(int repeats, const Fn& fn) {
  std::vector<double> seconds;
  for (int i = 0; i <= repeats; ++i) {
    const double begun = MonotonicSeconds();
    fn();
    if (i > 0) seconds.push_back(MonotonicSeconds() - begun);  // the first one warms up
  }
  return Median(seconds);
}

Batch RandomBatch(const StepOptions& options, uint64_t key) {
  Batch batch;
  batch.rows = options.micro_batch;
  const int64_t tokens = options.micro_batch * options.sequence;
  for (int64_t i = 0; i < tokens; ++i) {
    const Philox4 r = Philox(key, i);
    batch.ids.push_back(static_cast<int32_t>(r[0] % options.model.vocab));
    batch.targets.push_back(static_cast<int32_t>(r[1] % options.model.vocab));
  }
  for (int64_t r = 0; r <= batch.rows; ++r) {
    batch.cu_seqlens.push_back(static_cast<int32_t>(r * options.sequence));
  }
  batch.counted = tokens;
  return batch;
}

}  // namespace

MachineLimits MeasureLimits(Device device, DType dtype) {
  const bool gpu = device.backend == Backend::kCuda;
  Stream stream{.device = device};
  const int64_t edge = gpu ? 8192 : 1024;
  const Tensor a = Tensor::Zeros({edge, edge}, dtype, device), b = a.Clone(), c = a.Clone();
  const double gemm = MedianSeconds(5, [&] {
    Gemm(stream, {.a = a, .b = b, .c = c});
    WaitFor(stream);
  });
  const int64_t floats = int64_t{1} << (gpu ? 28 : 26);  // far beyond the caches
  const Tensor from = Tensor::Zeros({floats}, DType::kF32, device), to = from.Clone();
  const double copy = MedianSeconds(5, [&] {
    if (gpu) {
      to.CopyFrom(from);
      return WaitFor(stream);
    }
    const float* source = from.data<float>();
    float* target = to.data<float>();
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < floats; ++i) target[i] = source[i];
  });
  const double cube = static_cast<double>(edge) * static_cast<double>(edge * edge);
  return {.gemm_flops = 2 * cube / gemm, .copy_bytes = 8.0 * static_cast<double>(floats) / copy};
}

absl::StatusOr<std::vector<OpTiming>> BenchOps(const std::vector<std::string>& ops, Device device,
                                               DType dtype, int repeats) {
  const std::vector<std::string> known = BenchTargetNames();
  for (const std::string& op : ops) {
    if (std::find(known.begin(), known.end(), op) == known.end()) {
      const std::string near = NearestName(op, known);
      return absl::NotFoundError(
          StrCat("no operator '", op, "'", near.empty() ? "" : "; did you mean '" + near + "'?"));
    }
  }
  const MachineLimits limits = MeasureLimits(device, dtype);
  std::vector<OpTiming> timings;
  for (const std::string& op : known) {
    if (!ops.empty() && std::find(ops.begin(), ops.end(), op) == ops.end()) continue;
    ASSIGN_OR_RETURN(const std::unique_ptr<BenchTarget> target, MakeBenchTarget(op, dtype));
    Stream stream{.device = device};
    std::vector<double> forward, backward;
    for (int i = 0; i <= repeats; ++i) {
      const BenchTarget::Seconds seconds = target->Run(stream);
      if (i == 0) continue;
      forward.push_back(seconds.forward);
      backward.push_back(seconds.backward);
    }
    const MetaMeter meter;
    Stream meta{.device = {Backend::kMeta}};
    target->Run(meta);
    timings.push_back({.op = op,
                       .name = target->name(),
                       .forward_s = Median(forward),
                       .backward_s = Median(backward),
                       .flops = meter.flops(),
                       .bytes = meter.bytes_moved(),
                       .floor_s = std::max(meter.flops() / limits.gemm_flops,
                                           meter.bytes_moved() / limits.copy_bytes)});
  }
  return timings;
}

absl::StatusOr<StepTiming> BenchStep(const RunConfig& config, Device device, int steps,
                                     Communicator& world) {
  ASSIGN_OR_RETURN(const Mesh mesh, MeshFor(config, world.size()));
  const std::unique_ptr<Communicator> dp = AxisGroup(world, mesh, Axis::kDp);
  ASSIGN_OR_RETURN(const StepOptions options,
                   StepOptionsFor(config, mesh, device, config.batch.micro_batch, world));
  const MachineLimits limits = MeasureLimits(device, options.dtype);
  CachingAllocator& memory = CachingAllocator::Of(device);
  memory.Trim();
  const MemoryPlan plan = PlanMemory(options, mesh, dp->rank(), /*diagnostics=*/false);
  RETURN_IF_ERROR(CheckFits(plan, MemoryBudget(device, world.local_size())));
  const int64_t before = memory.stats().live;
  TrainStep step(options, mesh, *dp);
  step.ReserveWorkspace(plan.peak_bytes - plan.persistent_bytes);
  step.InitializeParameters(static_cast<uint64_t>(config.run.seed));
  std::vector<Batch> batches;
  for (int64_t m = 0; m < options.micro_batches; ++m) {
    batches.push_back(RandomBatch(options, 1000 * (dp->rank() + 1) + m));
  }
  StepTiming timing{.parameters = plan.parameters, .planned_bytes = plan.peak_bytes};
  std::vector<double> seconds;
  int64_t growths = 0;
  constexpr int kWarmUp = 3;
  for (int i = 0; i < steps + kWarmUp; ++i) {
    if (i == 1) {
      memory.ResetPeak();
      growths = memory.stats().growths;
    }
    dp->Barrier();
    const double begun = MonotonicSeconds();
    step.Begin();
    for (const Batch& batch : batches) step.MicroBatch(batch);
    const StepReport report = step.Finish({.step = i + 1, .lr = config.optimizer.lr});
    WaitFor({.device = device});
    if (i >= kWarmUp) seconds.push_back(MonotonicSeconds() - begun);
    timing.loss_last = report.sums[0] / report.counted_tokens;
    if (i == 0) timing.loss_first = timing.loss_last;
  }
  const double tokens = static_cast<double>(config.batch.tokens);
  timing.step_s = Median(seconds);
  timing.tokens_per_s = tokens / timing.step_s;
  timing.model_tflops = timing.tokens_per_s * plan.model_flops_per_token / 1e12;
  timing.gemm_share = timing.model_tflops * 1e12 / world.size() / limits.gemm_flops;
  timing.peak_bytes = memory.stats().peak - before;
  timing.growths = memory.stats().growths - growths;
  return timing;
}

}  // namespace lt2
