#include "launch/step_cost.h"

#include <gtest/gtest.h>

#include "core/strings.h"
#include "launch/environment.h"

namespace lt2 {
namespace {

// Rates at which products and copies of lt2-tiny take comparable time.
Machine Simple() {
  Machine machine{.name = "simple", .memory = 1e12, .ranks_per_node = 8, .call_s = 1e-6};
  machine.products[Precision::kFp32].flops = {{1}, {1e11}};
  machine.copy = {{1}, {1e10}};
  machine.node = machine.network = {.bandwidth = 1e9, .latency_s = 1e-5};
  return machine;
}

DryStep Dry(const std::vector<std::string>& sets, const Mesh& mesh) {
  const RunConfig config = *LoadRunConfig("lt2-tiny", sets);
  return RunDry(DescribedStep(config, mesh, {Backend::kMeta}, config.batch.micro_batch), mesh);
}

TEST(StepCost, CountsWhatAStepOfManyMicroBatchesDoes) {
  for (const int rows : {1, 2, 4, 8}) {
    SCOPED_TRACE(rows);
    const std::vector<std::string> sets = {"batch.tokens=2048",
                                           "batch.micro_batch=" + std::to_string(rows)};
    const RunConfig config = *LoadRunConfig("lt2-tiny", sets);
    const DryStep dry = Dry(sets, {.cp = 2});
    // All micro-batches, run one by one.
    const MemoryPlan all =
        PlanMemory(DescribedStep(config, {.cp = 2}, {Backend::kMeta}, rows), {.cp = 2}, 1, false);
    EXPECT_NEAR(dry.memory.step_flops, all.step_flops, 1e-6 * all.step_flops);
    EXPECT_EQ(dry.memory.peak_bytes, all.peak_bytes);
  }
}

TEST(StepCost, EveryKernelHasItsOperatorsName) {
  const DryStep dry = Dry({"parallel.recompute=block"}, {});
  double named = 0, all = 0;
  bool scans = false, weights = false;
  for (const CostLog::Call& call : dry.calls) {
    if (dry.IsUpdate(call)) continue;
    all += call.flops;
    if (std::string_view(call.op) != "") named += call.flops;
    scans |= std::string_view(call.op) == "scan_delta" && call.place.layer == 0;
    weights |= call.weights && call.place.backward;
  }
  EXPECT_GT(named, 0.999 * all);
  EXPECT_TRUE(scans && weights);
}

TEST(StepCost, IsTheSumOfItsKernels) {
  const DryStep dry = Dry({}, {});
  Machine machine = Simple();
  const StepCost cost = CostOf(dry, machine, Precision::kFp32, {}, Pipeline::kRing);
  double seconds = 0;
  for (const CostLog::Call& call : dry.calls) {
    seconds += dry.Times(call) * machine.SecondsOf(call, Precision::kFp32);
  }
  EXPECT_NEAR(cost.seconds(), seconds, 1e-9 * seconds);
  EXPECT_EQ(cost.bubble_s, 0);
  EXPECT_EQ(cost.sent_s(), 0);
  EXPECT_GT(cost.update_s, 0);
  EXPECT_GT(cost.compute_s, 10 * cost.update_s);
}

TEST(StepCost, GradientsTravelOnceAStepAndValuesToo) {
  const Mesh mesh{.dp = 4};
  const DryStep dry = Dry({"batch.tokens=16384"}, mesh);
  const StepCost cost = CostOf(dry, Simple(), Precision::kFp32, mesh, Pipeline::kRing);
  const AxisTraffic& dp = cost.axes[static_cast<int>(Axis::kDp)];
  // Scattered sums and gathered values: 3/4 of each, and some scalars and padding.
  const double parameters = static_cast<double>(dry.memory.parameters);
  EXPECT_NEAR(dp.bytes, 2 * 0.75 * 4 * parameters, 0.02 * dp.bytes);
  EXPECT_NEAR(dp.seconds, dp.messages * 1e-5 + dp.bytes / 1e9, 1e-9);
  EXPECT_EQ(cost.axes[static_cast<int>(Axis::kTp)].messages, 0);

  Machine hides = Simple();
  hides.update_hidden = 0.75;
  EXPECT_NEAR(CostOf(dry, hides, Precision::kFp32, mesh, Pipeline::kRing).sent_s(), dp.seconds / 4,
              1e-9);
}

TEST(StepCost, TensorParallelLayersSendFourActivationsAVisit) {
  const Mesh mesh{.tp = 2};
  const StepCost cost = CostOf(Dry({}, mesh), Simple(), Precision::kFp32, mesh, Pipeline::kRing);
  const AxisTraffic& tp = cost.axes[static_cast<int>(Axis::kTp)];
  const double activation = 1024 * 128 * 4, visits = 2 * 2 * 5;  // micro-batches, loops, layers
  // Also the embedding's and the head's.
  EXPECT_GT(tp.bytes, 4 * visits * activation);
  EXPECT_LT(tp.bytes, 4 * (visits + 2) * activation);
}

// Layers that all cost the same, through stages that hold as many each.
TEST(StepCost, ThePipelinesBubbleIsTheSimulations) {
  const std::vector<std::string> sets = {"model.layers=4", "model.mixers=[\"full\"]",
                                         "batch.tokens=65536"};
  const DryStep dry = Dry(sets, {});
  const double visits = 64 * 2;
  Machine machine = Simple();
  machine.network = machine.node = {.bandwidth = 1e30, .latency_s = 0};
  const auto of = [&](int stages) {
    return CostOf(dry, machine, Precision::kFp32, {.pp = stages}, Pipeline::kRing);
  };
  const StepCost one = of(1), four = of(4);
  // All of the head's work is on one stage, of the layers' a quarter.
  EXPECT_LT(four.compute_s, one.compute_s / 2);
  EXPECT_GT(four.compute_s, one.compute_s / 4);
  EXPECT_GT(four.bubble_s, 0);
  EXPECT_LT(four.bubble_s, 2 * four.compute_s * 3 / visits);
  EXPECT_LT(four.update_s, one.update_s / 2);
}

// Few micro-batches stand for many.
TEST(StepCost, TheLargestStageHoldsWhatItsDryRunHolds) {
  const std::vector<std::string> sets = {"batch.tokens=32768", "model.layers=5"};
  const RunConfig config = *LoadRunConfig("lt2-tiny", sets);
  const DryStep dry = Dry(sets, {});
  for (const Pipeline pipeline : {Pipeline::kRing, Pipeline::kRingZb}) {
    for (const int stages : {2, 3, 5}) {
      SCOPED_TRACE(StrCat(Name(pipeline), ", ", stages, " stages"));
      const Mesh mesh{.pp = stages};
      StepOptions options = DescribedStep(config, mesh, {Backend::kMeta}, 4);
      options.pipeline = pipeline;
      int64_t most = 0;
      for (int stage = 0; stage < stages; ++stage) {
        most = std::max(most, PlanMemory(options, mesh, stage, false).peak_bytes);
      }
      const MemoryPlan plan = MemoryOf(dry, mesh, pipeline);
      EXPECT_NEAR(static_cast<double>(plan.peak_bytes), static_cast<double>(most), 0.01 * most);
      EXPECT_LT(plan.weight_bytes, dry.memory.weight_bytes);
    }
  }
}

}  // namespace
}  // namespace lt2
