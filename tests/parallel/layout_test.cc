#include "parallel/layout.h"

#include <gtest/gtest.h>

#include <random>
#include <tuple>

#include "core/strings.h"
#include "tests/parallel/toy.h"

namespace lt2 {
namespace {

// Of ranks along tp, of which parameters have as many parts as divide them.
std::vector<ParamSpec> RandomSpecs(std::mt19937& random, int tp = 1) {
  const auto between = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  std::vector<ParamSpec> specs(between(1, 30));
  for (size_t i = 0; i < specs.size(); ++i) {
    Shape& shape = specs[i].shape;
    ParamSplit& split = specs[i].split;
    specs[i].name = StrCat("p", i);
    for (int64_t d = between(0, 3); d > 0; --d) shape.push_back(between(1, 12));
    split.whole_gradient = between(0, 2) == 0;
    if (shape.rank() == 0) continue;
    split.dim = static_cast<int>(between(0, shape.rank() - 1));
    split.parts = between(1, std::min<int64_t>(tp, shape[split.dim]));
    while (tp % split.parts != 0) --split.parts;
  }
  return specs;
}

// What is held of every tensor belongs to exactly one holder, and each one's elements of a bucket
// are the contiguous range its shard count says.
void CheckTiling(const std::vector<ParamSpec>& specs, const LayoutTable& table, int replicas) {
  std::vector<std::vector<int>> owner_of;  // by bucket, by element; -1: padding
  for (const Bucket& bucket : table.buckets) {
    owner_of.emplace_back(bucket.elements, -1);
    int64_t sum = 0;
    for (int64_t count : bucket.shard_counts) {
      ASSERT_GE(count, 0);
      sum += count;
    }
    ASSERT_EQ(static_cast<int>(bucket.shard_counts.size()), replicas * bucket.copies);
    ASSERT_EQ(sum, bucket.elements);
  }
  ASSERT_EQ(table.entries.size(), specs.size());
  for (size_t p = 0; p < specs.size(); ++p) {
    const LayoutEntry& entry = table.entries[p];
    ASSERT_EQ(entry.param, static_cast<int>(p));
    ASSERT_EQ(entry.offset % 16, 0);
    ASSERT_TRUE(std::ranges::count(table.buckets[entry.bucket].params, entry.param) == 1);
    std::vector<int> seen(entry.held.size(), 0);
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
    for (size_t rank = 0; rank < table.buckets[b].shard_counts.size(); ++rank) {
      for (int64_t end = at + table.buckets[b].shard_counts[rank]; at < end; ++at) {
        EXPECT_TRUE(owner_of[b][at] == static_cast<int>(rank) || owner_of[b][at] == -1) << at;
      }
    }
  }
}

bool SameOwners(const LayoutEntry& a, const LayoutEntry& b) {
  return a.held == b.held && a.offset == b.offset && a.bucket == b.bucket &&
         std::ranges::equal(a.owners, b.owners, [](const OwnedPiece& x, const OwnedPiece& y) {
           return x.rank == y.rank && x.box == y.box && x.offset == y.offset;
         });
}

bool Holds(const LayoutEntry& entry, const Box& box) {
  const std::optional<Box> both = Intersect(entry.held, box);
  return both && *both == box;
}

// All ranks along tp together: buckets fire alike, each element is summed over exactly those that
// hold it (or, where gradients are whole, not along tp), and is counted and saved once.
void CheckTogether(const std::vector<ParamSpec>& specs, const std::vector<LayoutTable>& by_tp,
                   int replicas) {
  const int tp = static_cast<int>(by_tp.size());
  for (const LayoutTable& table : by_tp) {
    CheckTiling(specs, table, replicas);
    ASSERT_TRUE(
        std::ranges::equal(table.buckets, by_tp[0].buckets, {}, &Bucket::params, &Bucket::params));
    ASSERT_TRUE(
        std::ranges::equal(table.buckets, by_tp[0].buckets, {}, &Bucket::copies, &Bucket::copies));
  }
  for (size_t p = 0; p < specs.size(); ++p) {
    const Box whole = Box::Whole(specs[p].shape);
    std::vector<int> counted(whole.size(), 0);
    for (int t = 0; t < tp; ++t) {
      const LayoutEntry& entry = by_tp[t].entries[p];
      const Bucket& bucket = by_tp[t].buckets[entry.bucket];
      for (int other = 0; other < tp; ++other) {
        const LayoutEntry& theirs = by_tp[other].entries[p];
        const bool summed = other / bucket.copies == t / bucket.copies;
        if (summed) {
          ASSERT_TRUE(SameOwners(entry, theirs)) << specs[p].name;
        }
        ASSERT_EQ(Holds(theirs, entry.held), Intersect(theirs.held, entry.held).has_value());
        if (!specs[p].split.whole_gradient) {
          ASSERT_EQ(summed, Holds(theirs, entry.held)) << specs[p].name;
        } else {
          ASSERT_EQ(summed, other == t) << specs[p].name;
        }
      }
      for (const OwnedPiece& piece : entry.owners) {
        // A holder is one rank in `copies` along tp.
        if (!bucket.counted || piece.rank % bucket.copies != t % bucket.copies) continue;
        ForEachRun(whole, piece.box, [&](int64_t at, int64_t, int64_t n) {
          for (int64_t i = at; i < at + n; ++i) ++counted[i];
        });
      }
    }
    for (int count : counted) ASSERT_EQ(count, 1) << specs[p].name;
  }
}

TEST(Layout, OwnersTileEveryTensorOnEveryMesh) {
  for (int seed = 0; seed < 12; ++seed) {
    for (int tp = 1; tp <= 16; ++tp) {
      std::mt19937 random(100 * seed + tp);
      const std::vector<ParamSpec> specs = RandomSpecs(random, tp);
      for (int replicas = 1; replicas * tp <= 16; ++replicas) {
        SCOPED_TRACE(StrCat("seed ", seed, ", ", replicas, " replicas, tp ", tp));
        const int cp = replicas % 2 == 0 ? 2 : 1;
        const Mesh mesh{.dp = replicas / cp, .cp = cp, .tp = tp};
        for (int64_t bucket : {0, 1, 100, 700}) {
          for (bool whole : {false, true}) {
            std::vector<LayoutTable> by_tp;
            for (int t = 0; t < tp; ++t) {
              by_tp.push_back(Layout(specs, mesh, replicas % 2,
                                     {.bucket_elements = bucket, .whole_parameters = whole}, t));
            }
            CheckTogether(specs, by_tp, replicas);
            if (HasFatalFailure()) return;
            for (const LayoutEntry& entry : by_tp[0].entries) {
              ASSERT_TRUE(!whole || entry.owners.size() == 1);
            }
          }
        }
      }
    }
  }
}

// An odd vocabulary's parts differ by a row, and buckets are still closed at the same parameters.
TEST(Layout, PartsNeedNotBeEqual) {
  std::vector<ParamSpec> specs;
  for (int i = 0; i < 6; ++i) {
    specs.push_back({.name = StrCat("w", i), .shape = {7, 16}, .split = SplitRows(2)});
    specs.push_back({.name = StrCat("o", i), .shape = {16, 10}, .split = SplitColumns(2)});
  }
  const auto of = [&](int t) { return Layout(specs, {.tp = 2}, 0, {.bucket_elements = 128}, t); };
  const LayoutTable first = of(0), second = of(1);
  EXPECT_EQ(first.entries[0].held, (Box{{0, 0}, {3, 16}}));
  EXPECT_EQ(second.entries[0].held, (Box{{3, 0}, {4, 16}}));
  EXPECT_EQ(second.entries[1].held, (Box{{0, 5}, {16, 5}}));
  EXPECT_GT(first.buckets.size(), 3u);
  CheckTogether(specs, {first, second}, 1);
}

TEST(Layout, BucketsOfDifferentHoldersAreOpenAtOnce) {
  std::vector<ParamSpec> specs;
  for (int i = 0; i < 4; ++i) {
    specs.push_back({.name = StrCat("norm", i), .shape = {16}, .split = {.whole_gradient = true}});
    specs.push_back({.name = StrCat("q", i), .shape = {16, 16}, .split = SplitRows(4)});
    specs.push_back({.name = StrCat("k", i), .shape = {16, 16}, .split = SplitRows(2)});
  }
  const LayoutTable table = Layout(specs, {.tp = 4}, 0, {.bucket_elements = 200}, 1);
  // Keys of two layers are complete first, then the others', the queries, and norms at the end.
  const std::vector<std::vector<int>> want = {{11, 8}, {5, 2}, {10, 7, 4, 1}, {9, 6, 3, 0}};
  std::vector<std::vector<int>> got;
  for (const Bucket& bucket : table.buckets) got.push_back(bucket.params);
  EXPECT_EQ(got, want);
  EXPECT_EQ(table.buckets[0].copies, 2);
  EXPECT_EQ(table.buckets[2].copies, 1);
  EXPECT_EQ(table.buckets[3].copies, 1);
  EXPECT_TRUE(table.buckets[2].counted);
  EXPECT_FALSE(table.buckets[3].counted);  // rank 0 along tp does
}

TEST(Layout, WhatEveryStageHoldsIsOneBucketOfAllOfThem) {
  // Stages of different sizes, so that they would close buckets elsewhere.
  const auto of = [](int layers) {
    std::vector<ParamSpec> specs;
    for (int i = 0; i < 3; ++i) {
      specs.push_back({.name = StrCat("bounds", i), .shape = {300, 300}, .across_stages = true});
    }
    for (int i = 0; i < layers; ++i) specs.push_back({.name = StrCat("w", i), .shape = {300, 300}});
    return Layout(specs, {.pp = 2, .dp = 2}, 1);
  };
  std::vector<std::vector<OwnedPiece>> owners;
  for (const int layers : {1, 9}) {
    const LayoutTable table = of(layers);
    for (int p = 0; p < 3; ++p) {
      const Bucket& bucket = table.buckets[table.entries[p].bucket];
      EXPECT_TRUE(bucket.across_stages);
      EXPECT_EQ(bucket.params, (std::vector<int>{2, 1, 0}));
      EXPECT_EQ(bucket.shard_counts.size(), 4u);
      owners.push_back(table.entries[p].owners);
    }
    const Bucket& own = table.buckets[table.entries[3].bucket];
    EXPECT_FALSE(own.across_stages);
    EXPECT_EQ(own.shard_counts.size(), 2u);
  }
  for (int p = 0; p < 3; ++p) {
    ASSERT_EQ(owners[p].size(), owners[p + 3].size());
    for (size_t i = 0; i < owners[p].size(); ++i) {
      EXPECT_EQ(owners[p][i].rank, owners[p + 3][i].rank);
      EXPECT_EQ(owners[p][i].box, owners[p + 3][i].box);
    }
  }
}

TEST(LayoutDeathTest, PartsDivideRanks) {
  const std::vector<ParamSpec> specs = {{.name = "kv", .shape = {9}, .split = SplitRows(3)}};
  EXPECT_DEATH(Layout(specs, {.tp = 4}, 0), "kv: 3 parts among tp = 4");
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
    CheckTiling(specs, table, dp);
  }
}

TEST(Layout, ShardsAreWithinARowOfEvenElsewhere) {
  const std::vector<ParamSpec> specs = {{.name = "a", .shape = {1000, 67}},
                                        {.name = "b", .shape = {301, 59}}};
  for (int dp : {2, 3, 8}) {
    const LayoutTable table = Layout(specs, {.dp = dp}, 1, {.bucket_elements = 1 << 30});
    const Bucket& bucket = table.buckets[0];
    for (int64_t count : bucket.shard_counts) EXPECT_NEAR(count, bucket.elements / dp, 67) << dp;
    CheckTiling(specs, table, dp);
  }
}

TEST(Layout, MoreRanksThanRowsLeavesSomeEmpty) {
  const std::vector<ParamSpec> specs = {{.name = "gate", .shape = {2, 50}}};
  const LayoutTable table = Layout(specs, {.dp = 16}, 1);
  EXPECT_EQ(table.entries[0].owners.size(), 2u);
  CheckTiling(specs, table, 16);
}

// The owners are those that there are without context parallelism, and in the same order.
TEST(Layout, TheFirstRankOfARowOwnsAll) {
  for (const int tp : {1, 2, 4}) {
    std::mt19937 random(tp);
    const std::vector<ParamSpec> specs = RandomSpecs(random, tp);
    std::vector<LayoutTable> by_tp, apart;
    for (int t = 0; t < tp; ++t) {
      const LayoutOptions options{.bucket_elements = 100, .first_of_row = true};
      by_tp.push_back(Layout(specs, {.dp = 2, .cp = 3, .tp = tp}, 1, options, t));
      apart.push_back(Layout(specs, {.dp = 2, .tp = tp}, 1, options, t));
    }
    CheckTogether(specs, by_tp, /*replicas=*/6);
    for (int t = 0; t < tp; ++t) {
      for (size_t p = 0; p < specs.size(); ++p) {
        const int copies = by_tp[t].buckets[by_tp[t].entries[p].bucket].copies;
        const auto place = [copies](const OwnedPiece& piece) {
          const int replica = piece.rank / copies;
          return std::tuple(replica % 3, replica / 3 * copies + piece.rank % copies);
        };
        const auto want = [](const OwnedPiece& piece) { return std::tuple(0, piece.rank); };
        const auto &got = by_tp[t].entries[p].owners, &alone = apart[t].entries[p].owners;
        EXPECT_TRUE(std::ranges::equal(got, alone, {}, place, want)) << specs[p].name;
        EXPECT_TRUE(std::ranges::equal(got, alone, {}, &OwnedPiece::box, &OwnedPiece::box));
      }
    }
  }
}

TEST(Layout, IsAPureFunction) {
  const LayoutTable a = Layout(ToySpecs(), {.dp = 3}, 1), b = Layout(ToySpecs(), {.dp = 3}, 1);
  EXPECT_TRUE(std::ranges::equal(a.entries, b.entries, SameOwners));
}

}  // namespace
}  // namespace lt2
