#include "launch/memory_plan.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/strings.h"
#include "launch/environment.h"

namespace lt2 {
namespace {

// A hybrid model's step with and without rebuilding, as a GPU would take it.
std::vector<PolicyPlan> Plans(const std::string& precision) {
  const absl::StatusOr<RunConfig> config =
      LoadRunConfig("lt2-tiny", {"parallel.precision=" + precision, "batch.micro_batch=4",
                                 "batch.tokens=4096", "data.sequence=256"});
  CHECK(config.ok()) << config.status().ToString();
  const Mesh mesh = *MeshFor(*config, 1);
  return PlanPolicies(DescribedStep(*config, mesh, {Backend::kMeta}, 4), mesh);
}

TEST(MemoryPlan, PartsAreTheWhole) {
  for (const std::string precision : {"fp32", "bf16"}) {
    for (const PolicyPlan& plan : Plans(precision)) {
      SCOPED_TRACE(precision + " " + Name(plan.policy));
      const MemoryPlan& m = plan.memory;
      const int64_t values = precision == "bf16" ? 6 : 4;  // bytes of a parameter, about
      EXPECT_NEAR(static_cast<double>(m.weight_bytes), static_cast<double>(values * m.parameters),
                  0.1 * static_cast<double>(m.weight_bytes));
      EXPECT_GE(m.gradient_bytes, 4 * m.parameters);  // padding is little
      EXPECT_LE(m.gradient_bytes, 4.1 * static_cast<double>(m.parameters));
      EXPECT_GE(m.moment_bytes, 8 * m.parameters);
      EXPECT_EQ(m.persistent_bytes, m.weight_bytes + m.gradient_bytes + m.moment_bytes);
      EXPECT_GT(m.activation_bytes, 0);
      EXPECT_GT(m.workspace_bytes(), 0);
    }
  }
}

TEST(MemoryPlan, WhatIsRecomputedTakesTimeAndSavesMemory) {
  const std::vector<PolicyPlan> fp32 = Plans("fp32"), bf16 = Plans("bf16");
  ASSERT_EQ(bf16[0].policy, RecomputePolicy::kKeep);
  ASSERT_EQ(bf16[1].policy, RecomputePolicy::kNone);
  const auto takes = [](const PolicyPlan& plan) { return plan.memory.activation_bytes; };
  const auto flops = [](const PolicyPlan& plan) { return plan.memory.step_flops; };
  // In bfloat16 activations are half as large, and cheap ones need not be held at all.
  EXPECT_LT(takes(bf16[1]), 0.45 * takes(fp32[1]));
  EXPECT_LT(takes(bf16[1]), takes(bf16[0]));
  EXPECT_GT(flops(bf16[1]), flops(bf16[0]));
  EXPECT_EQ(takes(fp32[1]), takes(fp32[0]));
  for (const auto& plans : {fp32, bf16}) {
    for (size_t i = 2; i < plans.size(); ++i) {
      EXPECT_LT(takes(plans[i]), takes(plans[1])) << Name(plans[i].policy);
      EXPECT_GT(flops(plans[i]), flops(plans[1])) << Name(plans[i].policy);
    }
  }
}

// What of them stays is a share; what comes and goes is less than what would have stayed.
TEST(MemoryPlan, ShardsOfGradientsTakeLess) {
  constexpr Mesh kMesh{.dp = 4};
  for (const std::string loops : {"1", "4"}) {
    SCOPED_TRACE(loops + " loops");
    std::vector<MemoryPlan> plans;
    for (const std::string zero : {"1", "2"}) {
      const absl::StatusOr<RunConfig> config = LoadRunConfig(
          "lt2-tiny", {"model.loops=" + loops, "parallel.zero=" + zero, "data.sequence=64",
                       "batch.tokens=512", "batch.micro_batch=1"});
      CHECK(config.ok()) << config.status().ToString();
      plans.push_back(PlanMemory(DescribedStep(*config, kMesh, {Backend::kMeta}, 4), kMesh, 1));
    }
    const auto [whole, shards] = std::pair(plans[0], plans[1]);
    const auto gradients = static_cast<double>(whole.gradient_bytes);
    EXPECT_NEAR(static_cast<double>(shards.gradient_bytes), gradients / 4, 0.02 * gradients);
    EXPECT_NEAR(static_cast<double>(whole.persistent_bytes - shards.persistent_bytes),
                0.75 * gradients, 0.02 * gradients);
    // Of a loop all of them are there once, when some activations are gone.
    EXPECT_GT(static_cast<double>(whole.peak_bytes - shards.peak_bytes),
              (loops == "1" ? 0.5 : 0.25) * gradients);
  }
}

TEST(MemoryPlan, AutoComputesLeastOfWhatFits) {
  const auto plan = [](RecomputePolicy policy, int64_t peak, double flops) {
    PolicyPlan made{policy, {}};
    made.memory.peak_bytes = peak;
    made.memory.step_flops = flops;
    return made;
  };
  const std::vector<PolicyPlan> plans = {
      plan(RecomputePolicy::kNone, 100, 10), plan(RecomputePolicy::kFfn, 60, 13),
      plan(RecomputePolicy::kMixer, 80, 12), plan(RecomputePolicy::kBlock, 40, 14)};
  EXPECT_EQ(*ChooseRecompute(plans, 100), RecomputePolicy::kNone);
  EXPECT_EQ(*ChooseRecompute(plans, 99), RecomputePolicy::kMixer);
  EXPECT_EQ(*ChooseRecompute(plans, 79), RecomputePolicy::kFfn);
  EXPECT_EQ(*ChooseRecompute(plans, 40), RecomputePolicy::kBlock);
  EXPECT_TRUE(absl::IsResourceExhausted(ChooseRecompute(plans, 39).status()));
}

// The last rank of a row in tiles keeps the most keys, the first one the moments of all.
TEST(MemoryPlan, IsOfTheRankThatHoldsMost) {
  for (const char* mixers : {"model.mixers=['gdn']", "model.mixers=['full']"}) {
    const RunConfig config = *LoadRunConfig(
        "lt2-tiny", {mixers, "parallel.row_tiles=8", "parallel.cp=2", "parallel.zero=1"});
    const Mesh mesh = *MeshFor(config, 2);
    StepOptions options = DescribedStep(config, mesh, {Backend::kMeta}, 4);
    for (const PolicyPlan& plan : PlanPolicies(options, mesh)) {
      SCOPED_TRACE(StrCat(mixers, " ", Name(plan.policy)));
      options.recompute = plan.policy;
      EXPECT_EQ(plan.memory.peak_bytes, std::max(PlanMemory(options, mesh, 0).peak_bytes,
                                                 PlanMemory(options, mesh, 1).peak_bytes));
    }
  }
}

}  // namespace
}  // namespace lt2
