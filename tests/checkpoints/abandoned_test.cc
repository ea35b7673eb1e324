// Checkpoints that a run no longer continues from are moved aside, whole, and never taken for its
// own.
#include <gtest/gtest.h>

#include "core/strings.h"
#include "tests/checkpoints/saving.h"
#include "tests/support/temporary_directory.h"

namespace lt2 {
namespace {

using Names = std::vector<std::string>;

class AbandonedTest : public testing::Test {
 protected:
  Names Listed() const { return FileSystem::Get().List(root_.path()).value(); }
  std::string Path(const std::string& name) const { return JoinPath(root_.path(), name); }
  void Save(int64_t step, uint64_t seed) {
    ASSERT_TRUE(SaveSample(root_.path(), step, seed, 2, {.retention = {.keep_last = 9}}).ok());
  }

  TemporaryDirectory root_;
};

TEST_F(AbandonedTest, LaterStepsAreKeptUnderAnotherName) {
  for (int64_t step : {10, 20, 30, 40}) Save(step, step);
  ASSERT_TRUE(SetAsideAfter(root_.path(), 20).ok());
  EXPECT_EQ(Listed(), (Names{StepName(10), StepName(20), StepName(30) + ".abandoned-1",
                             StepName(40) + ".abandoned-1"}));
  ExpectSample(Path(StepName(40) + ".abandoned-1"), 40);

  // Neither listed, nor the newest, nor stale; but there for whoever names it.
  const auto ignore = [](const std::string&) {};
  EXPECT_EQ(ListCheckpoints(root_.path(), true)->size(), 2u);
  EXPECT_EQ(FindNewestSound(root_.path(), ignore).value(), Path(StepName(20)));
  ASSERT_TRUE(RemoveStale(root_.path()).ok());
  EXPECT_EQ(Listed().size(), 4u);
  const std::string named = Path(StepName(30) + ".abandoned-1");
  EXPECT_EQ(CheckpointsAt(named).value(), Names{named});
}

TEST_F(AbandonedTest, ASecondTimeTakesAnotherName) {
  for (uint64_t seed : {1, 2}) {
    Save(30, seed);
    ASSERT_TRUE(SetAsideAfter(root_.path(), -1).ok());
  }
  EXPECT_EQ(Listed(), (Names{StepName(30) + ".abandoned-1", StepName(30) + ".abandoned-2"}));
  for (uint64_t seed : {1, 2}) ExpectSample(Path(StrCat(StepName(30), ".abandoned-", seed)), seed);
}

TEST_F(AbandonedTest, NothingLaterChangesNothing) {
  EXPECT_TRUE(SetAsideAfter("/nonexistent/run", -1).ok());
  Save(0, 1);
  ASSERT_TRUE(SetAsideAfter(root_.path(), 0).ok());
  EXPECT_EQ(Listed(), Names{StepName(0)});
}

}  // namespace
}  // namespace lt2
