#include "kernels/measured_choices.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/support/temporary_directory.h"

namespace lt2 {
namespace {

class MeasuredChoicesTest : public testing::Test {
 protected:
  // By a process that has seen nothing yet.
  std::string Choose(const std::string& key, const std::string& measured) {
    MeasuredChoices choices(path_);
    const absl::StatusOr<std::string> chosen = choices.Choose(
        key, [this](const std::string& value) { return value != refused_; },
        [&] { return ++measurements_, measured; });
    EXPECT_TRUE(chosen.ok()) << chosen.status();
    return chosen.value_or("");
  }
  std::string Text() const {
    std::ifstream file(path_);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  const TemporaryDirectory directory_;
  const std::string folder_ = directory_.path();
  std::string path_ = folder_ + "/sub/choices.txt", refused_;
  std::atomic<int> measurements_ = 0;
};

TEST_F(MeasuredChoicesTest, WhatOneMeasuredAllTake) {
  EXPECT_EQ(Choose("8x8", "fast"), "fast");
  EXPECT_EQ(Choose("9x9", "other"), "other");
  EXPECT_EQ(Choose("8x8", "never"), "fast");
  EXPECT_EQ(Choose("9x9", "never"), "other");
  EXPECT_EQ(measurements_, 2);
}

TEST_F(MeasuredChoicesTest, WhatNoLongerRunsIsMeasuredAgain) {
  EXPECT_EQ(Choose("8x8", "old"), "old");
  refused_ = "old";
  EXPECT_EQ(Choose("8x8", "new"), "new");
  EXPECT_EQ(Choose("8x8", "never"), "new");
  EXPECT_EQ(measurements_, 2);
}

TEST_F(MeasuredChoicesTest, DamagedLinesAreMeasuredAgain) {
  EXPECT_EQ(Choose("8x8", "a1b2"), "a1b2");
  EXPECT_EQ(Choose("9x9", "c3d4"), "c3d4");
  std::string text = Text();
  text.replace(text.find("a1b2"), 4, "a1b3");  // another value, the old check
  std::ofstream(path_) << text << "half a line";
  EXPECT_EQ(Choose("9x9", "never"), "c3d4");
  EXPECT_EQ(Choose("8x8", "e5f6"), "e5f6");
  EXPECT_EQ(measurements_, 3);
  EXPECT_EQ(Text().find("half"), std::string::npos);
  std::ofstream(path_) << std::string(1000, '\0');
  EXPECT_EQ(Choose("8x8", "again"), "again");
}

TEST_F(MeasuredChoicesTest, RanksThatMeetAKeyTogetherMeasureOnce) {
  std::vector<std::string> chosen(8);
  std::vector<std::thread> ranks;
  for (size_t r = 0; r < chosen.size(); ++r) {
    ranks.emplace_back([&, r] { chosen[r] = Choose("8x8", "rank" + std::to_string(r)); });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(measurements_, 1);
  for (const std::string& value : chosen) EXPECT_EQ(value, chosen[0]);
}

TEST_F(MeasuredChoicesTest, NoFolderIsAnError) {
  std::ofstream(folder_ + "/file") << "not a folder";
  MeasuredChoices choices(folder_ + "/file/choices.txt");
  const auto measure = [this] { return ++measurements_, std::string("x"); };
  EXPECT_FALSE(choices
                   .Choose(
                       "8x8", [](const std::string&) { return true; }, measure)
                   .ok());
  EXPECT_EQ(measurements_, 0);
}

}  // namespace
}  // namespace lt2
