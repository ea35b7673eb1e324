#include "launch/mesh_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/strings.h"
#include "launch/scaling.h"

namespace lt2 {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Machine Simple(double memory = 1e12) {
  Machine machine{.name = "simple", .memory = memory, .ranks_per_node = 4, .call_s = 1e-6};
  machine.products[Precision::kFp32].flops = {{1}, {1e11}};
  machine.copy = {{1}, {1e10}};
  machine.node = {.bandwidth = 1e10, .latency_s = 1e-5};
  machine.network = {.bandwidth = 1e9, .latency_s = 5e-5};
  return machine;
}

RunConfig Tiny(const std::vector<std::string>& sets = {}) {
  return *LoadRunConfig("lt2-tiny", sets);
}

TEST(MeshSearch, BestComesFirstAndAllAreLegal) {
  const RunConfig config = Tiny({"batch.tokens=16384"});
  const std::vector<MeshChoice> best = *BestMeshes(config, Simple(), 8, 5);
  ASSERT_EQ(best.size(), 5);
  for (size_t i = 0; i < best.size(); ++i) {
    EXPECT_EQ(best[i].mesh.size(), 8);
    EXPECT_LE(static_cast<double>(best[i].memory.peak_bytes), 1e12);
    EXPECT_NEAR(best[i].tokens_per_s * best[i].cost.seconds(), 16384, 1e-6);
    if (i > 0) EXPECT_GE(best[i].cost.seconds(), best[i - 1].cost.seconds());
  }
  // Of a small model on fast links the rows are divided, not what they go through.
  EXPECT_EQ(best[0].mesh, (Mesh{.dp = 8}));
}

TEST(MeshSearch, WhatDoesNotFitIsComputedAgain) {
  const RunConfig config = Tiny();
  const MeshChoice roomy = Examine(config, Simple(), {.dp = 2}, Pipeline::kRing);
  EXPECT_EQ(roomy.recompute, RecomputePolicy::kKeep);
  const auto less = static_cast<double>(roomy.memory.peak_bytes) * 0.9;
  const MeshChoice tight = Examine(config, Simple(less), {.dp = 2}, Pipeline::kRing);
  EXPECT_GT(tight.recompute, RecomputePolicy::kNone);
  EXPECT_LE(static_cast<double>(tight.memory.peak_bytes), less);
  EXPECT_GT(tight.cost.seconds(), roomy.cost.seconds());
}

TEST(MeshSearch, ARefusalNamesTheSmallestChange) {
  const RunConfig config = Tiny({"batch.micro_batch=8"});
  double leanest = 1e18;  // of one rank with so many rows, and with half as many
  RunConfig half = config;
  half.batch.micro_batch = 4;
  leanest = static_cast<double>(Examine(config, Simple(1), {}, Pipeline::kRing).memory.peak_bytes);
  const double less =
      static_cast<double>(Examine(half, Simple(1), {}, Pipeline::kRing).memory.peak_bytes);
  ASSERT_LT(less, leanest);
  const absl::Status rows = BestMeshes(config, Simple((less + leanest) / 2), 1, 3).status();
  EXPECT_TRUE(absl::IsInvalidArgument(rows)) << rows;
  EXPECT_THAT(std::string(rows.message()),
              AllOf(HasSubstr("no mesh of 1 rank and no parallel.recompute fit"),
                    HasSubstr("batch.micro_batch = 4 fits")));
  // Parameters alone are too many for one.
  const double parameters =
      16.0 * static_cast<double>(Examine(config, Simple(), {}, Pipeline::kRing).memory.parameters);
  const absl::Status more = BestMeshes(config, Simple(0.95 * parameters), 1, 3).status();
  EXPECT_THAT(std::string(more.message()), HasSubstr("ranks with batch.micro_batch = "));
  const absl::Status never = BestMeshes(config, Simple(1000), 1, 3).status();
  EXPECT_THAT(std::string(never.message()), HasSubstr("lower data.sequence"));
}

TEST(MeshSearch, ANumberOfRanksThatNoMeshHasIsRefused) {
  const absl::Status status = BestMeshes(Tiny({"data.sequence=4", "batch.micro_batch=1",
                                               "batch.tokens=4", "schedule.warmup=0 steps"}),
                                         Simple(), 7, 3)
                                  .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no mesh of 7 ranks is legal"));
}

TEST(Scaling, EndsWhereMoreRanksDoLess) {
  const RunConfig config = Tiny({"batch.tokens=16384"});
  const std::vector<ScalingPoint> points = Scale(config, Simple(), 64);
  ASSERT_EQ(points.size(), 7);
  EXPECT_DOUBLE_EQ(points[0].efficiency, 1);
  const std::string end = WhereScalingEnds(config, points);
  EXPECT_THAT(end, HasSubstr("efficient up to "));
  // What it says is what the points are.
  for (const ScalingPoint& point : points) {
    if (point.efficiency >= kEfficient) continue;
    EXPECT_THAT(end, HasSubstr(StrCat("; ", point.ranks, " ")));
    break;
  }
  Machine slow = Simple();
  slow.node.bandwidth = slow.network.bandwidth = 1e7;
  EXPECT_THAT(WhereScalingEnds(config, Scale(config, slow, 8)), HasSubstr("communication along"));
  EXPECT_EQ(WhereScalingEnds(config, Scale(config, Simple(1000), 2)), "no number of ranks fits");
}

}  // namespace
}  // namespace lt2
