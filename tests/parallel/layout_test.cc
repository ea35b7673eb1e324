#include "parallel/layout.h"

#include <gtest/gtest.h>

#include <random>

#include "core/strings.h"
#include "tests/parallel/toy.h"

namespace lt2 {
namespace {

std::vector<ParamSpec> RandomSpecs(std::mt19937& random) {
  const auto between = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  std::vector<ParamSpec> specs(between(1, 30));
  for (size_t i = 0; i < specs.size(); ++i) {
    specs[i].name = StrCat("p", i);
    for (int d = between(0, 3); d > 0; --d) specs[i].shape.push_back(between(1, 12));
  }
  return specs;
}

// Every element of every logical tensor belongs to exactly one rank, and each rank's elements of a
// bucket are the contiguous range its shard count says.
void CheckTiling(const std::vector<ParamSpec>& specs, const LayoutTable& table) {
  std::vector<std::vector<int>> owner_of;  // by bucket, by element; -1: padding
  for (const Bucket& bucket : table.buckets) {
    owner_of.emplace_back(bucket.elements, -1);
    int64_t sum = 0;
    for (int64_t count : bucket.shard_counts) {
      ASSERT_GE(count, 0);
      sum += count;
    }
    ASSERT_EQ(static_cast<int>(bucket.shard_counts.size()), table.replicas);
    ASSERT_EQ(sum, bucket.elements);
  }
  ASSERT_EQ(table.entries.size(), specs.size());
  for (size_t p = 0; p < specs.size(); ++p) {
    const LayoutEntry& entry = table.entries[p];
    ASSERT_EQ(entry.param, static_cast<int>(p));
    ASSERT_EQ(entry.held, Box::Whole(specs[p].shape));
    ASSERT_EQ(entry.offset % 16, 0);
    std::vector<int> seen(specs[p].shape.size(), 0);
    for (const OwnedPiece& piece : entry.owners) {
      ASSERT_FALSE(piece.box.empty());
      ForEachRun(entry.held, piece.box, [&](int64_t offset, int64_t in_piece, int64_t n) {
        EXPECT_EQ(offset, piece.offset + in_piece);
        for (int64_t i = offset; i < offset + n; ++i) {
          ++seen[i];
          EXPECT_EQ(std::exchange(owner_of[entry.bucket][entry.offset + i], piece.rank), -1);
        }
      });
    }
    for (int count : seen) ASSERT_EQ(count, 1) << specs[p].name;
  }
  for (size_t b = 0; b < table.buckets.size(); ++b) {
    int64_t at = 0;
    for (int rank = 0; rank < table.replicas; ++rank) {
      for (int64_t end = at + table.buckets[b].shard_counts[rank]; at < end; ++at) {
        EXPECT_TRUE(owner_of[b][at] == rank || owner_of[b][at] == -1) << at;
      }
    }
  }
}

TEST(Layout, OwnersTileEveryTensorForEveryNumberOfRanks) {
  for (int seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const std::vector<ParamSpec> specs = RandomSpecs(random);
    for (int dp = 1; dp <= 16; ++dp) {
      SCOPED_TRACE(dp);
      for (int64_t bucket : {0, 1, 100, 700}) {
        for (bool whole : {false, true}) {
          const LayoutTable table = Layout(specs, {.dp = dp}, dp % 2,
                                           {.bucket_elements = bucket, .whole_parameters = whole});
          CheckTiling(specs, table);
          for (const LayoutEntry& entry : table.entries) {
            ASSERT_TRUE(!whole || entry.owners.size() == 1);
          }
        }
      }
    }
  }
}

TEST(Layout, BucketsFollowReverseFirstUse) {
  const std::vector<ParamSpec> specs = ToySpecs();
  const LayoutTable table = Layout(specs, {.dp = 2}, 1, {.bucket_elements = 200});
  ASSERT_GT(table.buckets.size(), 1u);
  int last = static_cast<int>(specs.size());
  for (const Bucket& bucket : table.buckets) {
    for (int p : bucket.params) EXPECT_EQ(p, --last);
  }
  EXPECT_EQ(last, 0);
}

TEST(Layout, ShardsAreEvenWhereRowsAllow) {
  const std::vector<ParamSpec> specs = {{.name = "a", .shape = {1000, 64}},
                                        {.name = "b", .shape = {64}},
                                        {.name = "c", .shape = {300, 64}}};
  for (int dp : {2, 3, 8}) {
    const LayoutTable table = Layout(specs, {.dp = dp}, 1, {.bucket_elements = 1 << 30});
    ASSERT_EQ(table.buckets.size(), 1u);
    const Bucket& bucket = table.buckets[0];
    for (int64_t count : bucket.shard_counts) EXPECT_EQ(count, bucket.elements / dp) << dp;
    const int64_t needed = 1000 * 64 + 64 + 300 * 64;
    EXPECT_LE(bucket.elements, needed + needed / 64) << dp;
    CheckTiling(specs, table);
  }
}

TEST(Layout, ShardsAreWithinARowOfEvenElsewhere) {
  const std::vector<ParamSpec> specs = {{.name = "a", .shape = {1000, 67}},
                                        {.name = "b", .shape = {301, 59}}};
  for (int dp : {2, 3, 8}) {
    const LayoutTable table = Layout(specs, {.dp = dp}, 1, {.bucket_elements = 1 << 30});
    const Bucket& bucket = table.buckets[0];
    for (int64_t count : bucket.shard_counts) EXPECT_NEAR(count, bucket.elements / dp, 67) << dp;
    CheckTiling(specs, table);
  }
}

TEST(Layout, MoreRanksThanRowsLeavesSomeEmpty) {
  const std::vector<ParamSpec> specs = {{.name = "gate", .shape = {2, 50}}};
  const LayoutTable table = Layout(specs, {.dp = 16}, 1);
  EXPECT_EQ(table.entries[0].owners.size(), 2u);
  CheckTiling(specs, table);
}

TEST(Layout, IsAPureFunction) {
  const LayoutTable a = Layout(ToySpecs(), {.dp = 3}, 1), b = Layout(ToySpecs(), {.dp = 3}, 1);
  for (size_t p = 0; p < a.entries.size(); ++p) {
    ASSERT_EQ(a.entries[p].owners.size(), b.entries[p].owners.size());
    for (size_t i = 0; i < a.entries[p].owners.size(); ++i) {
      EXPECT_EQ(a.entries[p].owners[i].box, b.entries[p].owners[i].box);
    }
  }
}

}  // namespace
}  // namespace lt2
