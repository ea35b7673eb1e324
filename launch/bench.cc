#include "launch/bench.h"

#include <omp.h>

#include <algorithm>
#include <tuple>

#include "checkpoints/agreement.h"
#include "core/allocator.h"
#include "core/cuda.h"
#include "core/philox.h"
#include "core/status_macros.h"
#include "core/strings.h"
#include "kernels/elementwise.h"
#include "kernels/gemm.h"
#include "launch/bench_target.h"
#include "launch/device_peak.h"
#include "launch/environment.h"
#include "launch/memory_plan.h"
#include "launch/timing.h"

namespace lt2 {
namespace {

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

double GemmFlops(Device device, DType dtype, int64_t rows, int64_t width, int repeats) {
  Stream stream{.device = device};
  // Not zeros: their products draw less power and so run faster.
  const Tensor a = BenchNumbers("a", {rows, width}, dtype, device), c = a.Clone();
  const Tensor b = BenchNumbers("b", {width, width}, dtype, device);
  const double seconds =
      MedianSeconds(stream, repeats, [&] { Gemm(stream, {.a = a, .b = b, .c = c}); });
  return 2 * static_cast<double>(rows) * static_cast<double>(width * width) / seconds;
}

double CopyBytes(Device device, int64_t floats, int repeats) {
  Stream stream{.device = device};
  // On a GPU by a kernel: in a graph its copies are the copy engine's, slower.
  const bool gpu = device.backend == Backend::kCuda;
  const Tensor from = Tensor::Zeros({floats}, DType::kF32, device);
  const Tensor to = Tensor::Zeros({floats}, gpu ? DType::kBF16 : DType::kF32, device);
  const double seconds = MedianSeconds(stream, repeats, [&] {
    if (gpu) return Cast(stream, {.from = from, .to = to});
    const float* source = from.data<float>();
    float* target = to.data<float>();
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < floats; ++i) target[i] = source[i];
  });
  return static_cast<double>(from.bytes() + to.bytes()) / seconds;
}

MachineLimits MeasureLimits(Device device, DType dtype) {
  constexpr int kRepeats = 5;
  const bool gpu = device.backend == Backend::kCuda;
  const int64_t edge = gpu ? 8192 : 1024;
  // Copies are far beyond the caches.
  return {.gemm_flops = GemmFlops(device, dtype, edge, edge, kRepeats),
          .copy_bytes = CopyBytes(device, int64_t{1} << (gpu ? 28 : 26), kRepeats)};
}

std::pair<double, double> TimePasses(BenchTarget& target, Stream& stream, int repeats) {
  target.Prepare(stream);
  if (stream.device.backend == Backend::kCuda && !target.waits()) {
    const double forward = MedianSecondsReplayed(repeats, [&] { target.Run(false); });
    const double both = MedianSecondsReplayed(repeats, [&] { target.Run(true); });
    return {forward, std::max(0.0, both - forward)};
  }
  std::vector<double> forward, backward;
  for (int i = 0; i <= repeats; ++i) {
    const double begun = MonotonicSeconds();
    double between = begun;
    target.Run(true, [&] {
      WaitFor(stream);
      between = MonotonicSeconds();
    });
    WaitFor(stream);
    const double ended = MonotonicSeconds();
    if (i == 0) continue;
    forward.push_back(between - begun);
    backward.push_back(ended - between);
  }
  return {Median(forward), Median(backward)};
}

namespace {

OpTiming TimeTarget(const std::string& op, BenchTarget& target, Stream& stream, int repeats,
                    const MachineLimits& limits) {
  OpTiming timing{.op = op, .name = target.name(), .forward = {}, .backward = {}};
  std::tie(timing.forward.seconds, timing.backward.seconds) = TimePasses(target, stream, repeats);
  Stream meta{.device = {Backend::kMeta}};
  target.Prepare(meta);
  const MetaMeter meter;
  const bool differentiated = target.Run(true, [&] {
    timing.forward.flops = meter.flops();
    timing.forward.bytes = meter.bytes_moved();
  });
  timing.backward.flops = meter.flops() - timing.forward.flops;
  timing.backward.bytes = meter.bytes_moved() - timing.forward.bytes;
  for (OpTiming::Pass* pass : {&timing.forward, &timing.backward}) {
    pass->floor_s = std::max(pass->flops / limits.gemm_flops, pass->bytes / limits.copy_bytes);
  }
  if (!differentiated) timing.backward = {};
  return timing;
}

}  // namespace

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
  Stream stream{.device = device};
  std::vector<OpTiming> timings;
  for (const std::string& op : known) {
    if (!ops.empty() && std::find(ops.begin(), ops.end(), op) == ops.end()) continue;
    ASSIGN_OR_RETURN(const std::unique_ptr<BenchTarget> target, MakeBenchTarget(op, device, dtype));
    timings.push_back(TimeTarget(op, *target, stream, repeats, limits));
  }
  return timings;
}

absl::StatusOr<StepTiming> BenchStep(const RunConfig& config, Device device, int steps,
                                     Communicator& world) {
  ASSIGN_OR_RETURN(const Mesh mesh, MeshFor(config, world.size()));
  const RankGroups groups = MakeGroups(world, mesh);
  ASSIGN_OR_RETURN(const StepOptions options,
                   StepOptionsFor(config, mesh, device, config.batch.micro_batch, world));
  const MachineLimits limits = MeasureLimits(device, options.dtype);
  CachingAllocator& memory = CachingAllocator::Of(device);
  memory.Trim();
  const MemoryPlan plan = PlanMemory(options, mesh, world.rank(), /*diagnostics=*/false);
  RETURN_IF_ERROR(Agree(world, CheckFits(plan, MemoryBudget(device, world.local_size()))));
  const int64_t before = memory.stats().live;
  TrainStep step(options, mesh, groups);
  step.ReserveWorkspace(plan.peak_bytes - plan.persistent_bytes);
  step.InitializeParameters(static_cast<uint64_t>(config.run.seed));
  std::vector<Batch> batches;
  for (int64_t m = 0; m < options.micro_batches; ++m) {
    batches.push_back(RandomBatch(options, 1000 * (groups.dp + 1) + m));
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
    world.Barrier();
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
  timing.mfu = Mfu(device, options.dtype, timing.model_tflops * 1e12 / world.size());
  timing.gemm_share = timing.model_tflops * 1e12 / world.size() / limits.gemm_flops;
  timing.peak_bytes = memory.stats().peak - before;
  timing.growths = memory.stats().growths - growths;
  return timing;
}

}  // namespace lt2
