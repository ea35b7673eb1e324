#include "parallel/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/status_macros.h"
#include "parallel/optimizer_config.h"
#include "parallel/parallel_config.h"
#include "parallel/thread_communicator.h"

namespace lt2 {
namespace {

using ::testing::HasSubstr;

TEST(Mesh, ParsesWhatItPrints) {
  const Mesh mesh = *Mesh::Parse("tp=3, dp=2");
  EXPECT_EQ(mesh, (Mesh{.dp = 2, .tp = 3}));
  EXPECT_EQ(mesh.ToString(), "pp=1,dp=2,cp=1,tp=3");
  EXPECT_EQ(*Mesh::Parse(mesh.ToString()), mesh);
  EXPECT_EQ(*Mesh::Parse(""), Mesh{});
}

TEST(Mesh, RefusesNonsense) {
  for (const char* text : {"dp=0", "dp=x", "dp", "dp=2.5"}) {
    EXPECT_THAT(Mesh::Parse(text).status().ToString(), HasSubstr("wants a whole number")) << text;
  }
  EXPECT_THAT(Mesh::Parse("xp=2").status().ToString(), HasSubstr("unknown axis \"xp\""));
}

TEST(Mesh, CoordinatesAndRanksAgree) {
  const Mesh mesh{.pp = 2, .dp = 3, .cp = 2, .tp = 4};
  for (int rank = 0; rank < mesh.size(); ++rank) {
    EXPECT_EQ(mesh.RankOf(mesh.Coordinate(rank, Axis::kPp), mesh.Coordinate(rank, Axis::kDp),
                          mesh.Coordinate(rank, Axis::kCp), mesh.Coordinate(rank, Axis::kTp)),
              rank);
  }
  EXPECT_EQ(mesh.Coordinate(1, Axis::kTp), 1);   // fastest
  EXPECT_EQ(mesh.Coordinate(24, Axis::kPp), 1);  // slowest
}

TEST(Mesh, AxisGroupsHoldTheRanksThatDifferAlongTheAxis) {
  const Mesh mesh{.pp = 2, .dp = 3, .cp = 1, .tp = 2};
  RunRanks(mesh.size(), [&](Communicator& world) {
    for (Axis axis : {Axis::kPp, Axis::kDp, Axis::kCp, Axis::kTp}) {
      auto group = AxisGroup(world, mesh, axis);
      EXPECT_EQ(group->size(), mesh.Extent(axis));
      EXPECT_EQ(group->rank(), mesh.Coordinate(world.rank(), axis));
      for (const std::string& other : group->GatherStrings(std::to_string(world.rank()))) {
        for (Axis same : {Axis::kPp, Axis::kDp, Axis::kCp, Axis::kTp}) {
          if (same == axis) continue;
          EXPECT_EQ(mesh.Coordinate(std::stoi(other), same), mesh.Coordinate(world.rank(), same));
        }
      }
    }
  });
}

// Of a rank's groups: who is in them, by world rank.
std::vector<int> Members(Communicator& group, Communicator& world) {
  std::vector<int> members;
  for (const std::string& other : group.GatherStrings(std::to_string(world.rank()))) {
    members.push_back(std::stoi(other));
  }
  return members;
}

TEST(Mesh, HoldersAreTheReplicasAndSomeNeighboursAlongTp) {
  for (const Mesh& mesh : {Mesh{.dp = 2, .cp = 2, .tp = 4}, Mesh{.tp = 6}, Mesh{.cp = 3},
                           Mesh{.pp = 2, .dp = 2, .tp = 2}, Mesh{.pp = 3, .cp = 2}}) {
    SCOPED_TRACE(mesh.ToString());
    RunRanks(mesh.size(), [&](Communicator& world) {
      const RankGroups groups = MakeGroups(world, mesh);
      EXPECT_EQ(groups.world, &world);
      EXPECT_EQ(groups.dp, mesh.Coordinate(world.rank(), Axis::kDp));
      EXPECT_EQ(groups.cp->rank(), mesh.Coordinate(world.rank(), Axis::kCp));
      const int tp_rank = mesh.Coordinate(world.rank(), Axis::kTp);
      EXPECT_EQ(groups.tp->rank(), tp_rank);
      EXPECT_EQ(groups.tp->size(), mesh.tp);
      for (int copies = 1; copies <= mesh.tp; ++copies) {
        if (mesh.tp % copies > 0) {
          EXPECT_FALSE(groups.wider.contains(copies));
          continue;
        }
        std::vector<int> everywhere, here;
        for (int rank = 0; rank < mesh.size(); ++rank) {
          if (mesh.Coordinate(rank, Axis::kTp) / copies != tp_rank / copies) continue;
          everywhere.push_back(rank);
          if (mesh.Coordinate(rank, Axis::kPp) == groups.pp->rank()) here.push_back(rank);
        }
        const RankGroups meta = MakeMetaGroups(mesh, world.rank());
        for (const bool all_stages : {false, true}) {
          Communicator& holders = groups.Holders(copies, all_stages);
          EXPECT_EQ(Members(holders, world), all_stages ? everywhere : here) << copies;
          EXPECT_EQ(meta.Holders(copies, all_stages).rank(), holders.rank());
          EXPECT_EQ(meta.Holders(copies, all_stages).size(), holders.size());
        }
      }
    });
  }
}

TEST(ParallelConfig, ReadsAndRefuses) {
  ConfigTable table = *ConfigTable::Parse("dp = 4\nzero = 0\nprecision = \"fp64\"", "run.toml");
  ParallelConfig config = ParallelConfig::Read(table);
  EXPECT_TRUE(table.Finish().ok()) << table.Finish();
  EXPECT_EQ(config.dp, 4);
  EXPECT_EQ(config.zero, 0);
  EXPECT_EQ(config.compute_dtype(), DType::kF64);
  EXPECT_EQ(config.MeshFor(4)->dp, 4);
  EXPECT_THAT(config.MeshFor(2).status().ToString(),
              HasSubstr("does not fit 2 processes; start 4"));
  config.dp = 0;
  EXPECT_EQ(config.MeshFor(3)->dp, 3);

  table = *ConfigTable::Parse("tp = 2\ncp = 3\nsequence_parallel = true", "run.toml");
  config = ParallelConfig::Read(table);
  EXPECT_TRUE(table.Finish().ok()) << table.Finish();
  EXPECT_EQ(*config.MeshFor(12), (Mesh{.dp = 2, .cp = 3, .tp = 2}));
  EXPECT_TRUE(config.sequence_parallel);

  table = *ConfigTable::Parse(
      "dp = \"all\"\ntp = 0\npp = 0\nzero = 3\nsequence_parallel = true\nprecision = \"fp8\"",
      "run.toml");
  ParallelConfig::Read(table);
  const std::string errors = table.Finish().ToString();
  EXPECT_THAT(errors, HasSubstr("dp: wants \"auto\" or a whole number"));
  EXPECT_THAT(errors, HasSubstr("tp = 0: wants a whole number of at least 1"));
  EXPECT_THAT(errors, HasSubstr("pp = 0: wants a whole number of at least 1"));
  EXPECT_THAT(errors, HasSubstr("zero = 3: wants 0, 1 or 2"));
  EXPECT_THAT(errors, HasSubstr("sequence_parallel: needs ranks that share layers"));
  EXPECT_THAT(errors, HasSubstr("precision: wants one of"));
}

TEST(ParallelConfig, WhatItWritesReadsBack) {
  ConfigTable table;
  ParallelConfig{}.Write(&table);
  ConfigTable again = *ConfigTable::Parse(table.ToToml(), "resolved.toml");
  EXPECT_EQ(ParallelConfig::Read(again).dp, 0);
  EXPECT_TRUE(again.Finish().ok()) << again.Finish();
}

TEST(OptimizerConfig, ReadsAndRefuses) {
  ConfigTable table = *ConfigTable::Parse("lr = 6e-3\nbetas = [0.8, 0.9]\nclip = 0", "run.toml");
  const OptimizerConfig config = OptimizerConfig::Read(table);
  EXPECT_TRUE(table.Finish().ok()) << table.Finish();
  EXPECT_EQ(config.lr, 6e-3);
  EXPECT_EQ(config.beta1, 0.8);
  EXPECT_EQ(config.beta2, 0.9);
  ConfigTable written;
  config.Write(&written);
  ConfigTable again = *ConfigTable::Parse(written.ToToml(), "resolved.toml");
  EXPECT_EQ(OptimizerConfig::Read(again).beta2, 0.9);
  EXPECT_TRUE(again.Finish().ok()) << again.Finish();

  table =
      *ConfigTable::Parse("lr = -1\nbetas = [0.9, 1.0]\nskip_limit = -2\nepsilon = 1", "run.toml");
  OptimizerConfig::Read(table);
  const std::string errors = table.Finish().ToString();
  EXPECT_THAT(errors, HasSubstr("lr: must be from 0 to 1000, is -1"));
  EXPECT_THAT(errors, HasSubstr("betas: wants two numbers"));
  EXPECT_THAT(errors, HasSubstr("skip_limit"));
  EXPECT_THAT(errors, HasSubstr("epsilon: unknown key"));
}

}  // namespace
}  // namespace lt2
