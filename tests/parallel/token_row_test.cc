#include "parallel/token_row.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "core/strings.h"
#include "kernels/state_fold.h"
#include "parallel/context_shard.h"
#include "parallel/thread_communicator.h"

namespace lt2 {
namespace {

using testing::ElementsAre;

TEST(TokenRow, PartsSeeDocumentsFromWhereTheyStand) {
  const std::vector<int32_t> cu = {0, 3, 10, 12};
  const RowPart whole = PartOf(cu, 0, 12), inside = PartOf(cu, 4, 9), edge = PartOf(cu, 3, 11);
  EXPECT_THAT(whole.cu_seqlens, ElementsAre(0, 3, 10, 12));
  EXPECT_FALSE(whole.continues() || whole.spans());
  EXPECT_THAT(inside.cu_seqlens, ElementsAre(0, 5));
  EXPECT_EQ(inside.first_position, 1);
  EXPECT_TRUE(inside.continues() && inside.spans());
  EXPECT_THAT(edge.cu_seqlens, ElementsAre(0, 7, 8));
  EXPECT_FALSE(edge.continues() || edge.spans());
}

// Each token has one owner, and knows its place in its document there.
TEST(TokenRow, ShardsTileTheRow) {
  constexpr uint32_t kSeed = 5;
  std::mt19937 random(kSeed);
  for (int trial = 0; trial < 100; ++trial) {
    const int ranks = 1 + static_cast<int>(random() % 5);
    const int64_t tokens = ranks + static_cast<int64_t>(random() % 200);
    SCOPED_TRACE(StrCat("seed ", kSeed, " trial ", trial, ": ", tokens, " tokens, ", ranks));
    std::vector<int32_t> cu = {0};
    std::vector<int32_t> positions;
    for (int32_t t = 0; t < tokens; ++t) {
      if (t > 0 && random() % 20 == 0) cu.push_back(t);
      positions.push_back(t - cu.back());
    }
    cu.push_back(static_cast<int32_t>(tokens));
    RunRanks(ranks, [&](Communicator& world) {
      ContextShard shard(world, tokens, tokens, {});
      shard.Fill(cu);
      const int64_t begin = shard.begin(), end = begin + shard.tokens();
      EXPECT_EQ(begin, world.rank() == 0 ? 0 : shard.Begin(world.rank()));
      EXPECT_EQ(end, world.rank() + 1 == ranks ? tokens : shard.Begin(world.rank() + 1));
      const auto check = [&](const Documents& documents, int64_t first) {
        const int32_t* got = documents.whole_positions().data<int32_t>();
        for (int64_t t = 0; t < documents.tokens(); ++t) EXPECT_EQ(got[t], positions[first + t]);
        EXPECT_EQ(first + documents.query_begin(), begin);
      };
      check(shard.documents(), begin);
      check(shard.row(), 0);
      for (const int64_t reach : {1, 3, 50}) check(shard.context(reach), begin - shard.Halo(reach));
    });
  }
}

}  // namespace
}  // namespace lt2
