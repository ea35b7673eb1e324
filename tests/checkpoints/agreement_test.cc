#include "checkpoints/agreement.h"

#include <gtest/gtest.h>

#include "core/strings.h"
#include "parallel/thread_communicator.h"

namespace lt2 {
namespace {

TEST(Agree, NamesTheRankUnlessAllFailedAlike) {
  const absl::Status bad = absl::NotFoundError("/data: no such folder");
  RunRanks(3, [&](Communicator& world) {
    EXPECT_TRUE(Agree(world, absl::OkStatus()).ok());
    EXPECT_EQ(Agree(world, bad), bad);
    const absl::Status one = Agree(world, world.rank() == 1 ? bad : absl::OkStatus());
    EXPECT_TRUE(absl::IsNotFound(one)) << one;
    EXPECT_EQ(one.message(), StrCat("rank 1 (", world.host(), "): /data: no such folder"));
    const absl::Status mixed = Agree(world, world.rank() == 2 ? absl::DataLossError("x") : bad);
    EXPECT_EQ(mixed.message().find("rank 0 ("), size_t{0}) << mixed;
  });
}

TEST(Agree, ListsTravelWhole) {
  RunRanks(3, [&](Communicator& world) {
    const std::vector<std::string> mine(world.rank(), StrCat("\n\xff", world.rank()));
    EXPECT_EQ(GatherList(world, mine), (std::vector<std::string>{"\n\xff"
                                                                 "1",
                                                                 "\n\xff"
                                                                 "2",
                                                                 "\n\xff"
                                                                 "2"}));
    for (const auto& list : {std::vector<std::string>{}, {"a/b", "", "c d"}}) {
      EXPECT_EQ(BroadcastList(world, world.rank() == 0 ? list : mine).value(), list);
    }
    const absl::Status bad = absl::NotFoundError("no list");
    absl::StatusOr<std::vector<std::string>> none = mine;
    if (world.rank() == 0) none = bad;
    EXPECT_EQ(BroadcastList(world, none).status(), bad);
  });
}

}  // namespace
}  // namespace lt2
