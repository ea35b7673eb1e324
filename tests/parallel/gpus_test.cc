#include "parallel/gpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lt2 {
namespace {

using testing::HasSubstr;

TEST(Gpus, ALocalRankTakesTheNextOne) {
  EXPECT_EQ(GpuIndex(0, 4), 0);
  EXPECT_EQ(GpuIndex(3, 4), 3);
  EXPECT_EQ(GpuIndex(2, 1), 0);  // a cluster gives each rank its own
  EXPECT_EQ(GpuIndex(2, 0), 0);
}

TEST(Gpus, OneEachIsRight) {
  EXPECT_TRUE(CheckClaims(std::vector<GpuClaim>{{"a", 2, "x"}, {"a", 2, "y"}, {"b", 2, "z"}}).ok());
  EXPECT_TRUE(CheckClaims(std::vector<GpuClaim>{{"a", 1, "x"}, {"a", 1, "y"}}).ok());
  EXPECT_TRUE(CheckClaims(std::vector<GpuClaim>{{"a", 8, "x"}}).ok());
}

TEST(Gpus, TooManyRanksAreToldWhatToChange) {
  const absl::Status shared =
      CheckClaims(std::vector<GpuClaim>{{"a", 2, "x"}, {"a", 2, "y"}, {"a", 2, "x"}});
  EXPECT_TRUE(absl::IsInvalidArgument(shared));
  EXPECT_THAT(std::string(shared.message()),
              HasSubstr("a has 3 ranks and rank 2 sees 2 GPUs, so that it would share one with "
                        "rank 0; start one rank a GPU (mpirun -n 2"));
  const absl::Status none = CheckClaims(std::vector<GpuClaim>{{"a", 1, "x"}, {"b", 0, ""}});
  EXPECT_THAT(std::string(none.message()), HasSubstr("rank 1 sees no GPU on b"));
}

}  // namespace
}  // namespace lt2
