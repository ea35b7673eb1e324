// The file system fails at the k-th change, for every k: no save, however it ends, harms the last.
#include "tests/support/faulty_file.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/checkpoints/saving.h"
#include "tests/support/temporary_directory.h"

namespace lt2 {
namespace {

constexpr int kRanks = 2;

struct Mode {
  bool async = false;
  int sharing = 0;  // ranks a file; 0: each its own
};

absl::StatusOr<SavedCheckpoint> Save(const std::string& root, int64_t step, const Mode& mode) {
  return SaveSample(root, step, static_cast<uint64_t>(step), kRanks, {.async = mode.async},
                    /*scale=*/1, mode.sharing);
}

int ChangesOfOneSave(const Mode& mode) {
  TemporaryDirectory directory;
  FaultyFileSystem files;
  EXPECT_TRUE(Save(directory.path(), 1, mode).ok());
  return files.changes();
}

// What is published is sound; step 1 is there and unharmed.
void ExpectAllPublishedSound(const std::string& root) {
  const auto steps = ListSteps(root);
  ASSERT_TRUE(steps.ok() && !steps->empty());
  EXPECT_EQ((*steps)[0].step, 1);
  for (const StepDirectory& step : *steps) {
    ExpectSample(step.path, static_cast<uint64_t>(step.step));
  }
}

class FaultyFileTest : public testing::TestWithParam<Mode> {};

TEST_P(FaultyFileTest, AFailureAnywhereIsToldAndCleanedUp) {
  const int changes = ChangesOfOneSave(GetParam());
  ASSERT_GT(changes, 6);
  for (int k = 1; k <= changes; ++k) {
    SCOPED_TRACE(testing::Message() << "change " << k);
    TemporaryDirectory directory;
    ASSERT_TRUE(SaveSample(directory.path(), 1, 1, kRanks).ok());
    FaultyFileSystem files;
    files.FailAt(k, FaultyFileSystem::Mode::kOnce);
    const auto saved = Save(directory.path(), 2, GetParam());
    ASSERT_TRUE(absl::IsResourceExhausted(saved.status())) << saved.status();
    EXPECT_NE(saved.status().message().find("a test says so"), std::string::npos);
    EXPECT_NE(saved.status().message().find("last good checkpoint"), std::string::npos);
    ExpectAllPublishedSound(directory.path());
    EXPECT_EQ(Leftovers(directory.path()), std::vector<std::string>{});

    files.FailAt(0, FaultyFileSystem::Mode::kOnce);
    EXPECT_TRUE(Save(directory.path(), 2, GetParam()).ok());
    ExpectAllPublishedSound(directory.path());
  }
}

TEST_P(FaultyFileTest, ACrashAnywhereLeavesOnlySoundCheckpoints) {
  const int changes = ChangesOfOneSave(GetParam());
  for (int k = 1; k <= changes; ++k) {
    SCOPED_TRACE(testing::Message() << "change " << k);
    TemporaryDirectory directory;
    ASSERT_TRUE(SaveSample(directory.path(), 1, 1, kRanks).ok());
    {
      FaultyFileSystem files;
      files.FailAt(k, FaultyFileSystem::Mode::kCrash);
      EXPECT_FALSE(Save(directory.path(), 2, GetParam()).ok());
    }
    ExpectAllPublishedSound(directory.path());
    ASSERT_TRUE(RemoveStale(directory.path()).ok());
    EXPECT_EQ(Leftovers(directory.path()), std::vector<std::string>{});
    ExpectAllPublishedSound(directory.path());
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, FaultyFileTest,
                         testing::Values(Mode{}, Mode{.async = true}, Mode{.sharing = kRanks},
                                         Mode{.async = true, .sharing = kRanks}),
                         [](const auto& info) {
                           return std::string(info.param.async ? "Async" : "") +
                                  (info.param.sharing > 0 ? "Shared" : "Own");
                         });

TEST(FaultyFile, ACrashWhileReplacingLosesNeitherOldNorNew) {
  for (int k = 1; k <= ChangesOfOneSave({}) + 2; ++k) {
    SCOPED_TRACE(testing::Message() << "change " << k);
    TemporaryDirectory directory;
    ASSERT_TRUE(SaveSample(directory.path(), 1, 1, 1).ok());
    {
      FaultyFileSystem files;
      files.FailAt(k, FaultyFileSystem::Mode::kCrash);
      SaveSample(directory.path(), 1, 1, kRanks).IgnoreError();
    }
    ASSERT_TRUE(RemoveStale(directory.path()).ok());
    EXPECT_EQ(Leftovers(directory.path()), std::vector<std::string>{});
    ExpectAllPublishedSound(directory.path());
  }
}

TEST(FaultyFile, EverythingIsOnDiskBeforeTheNameAppears) {
  TemporaryDirectory directory;
  FaultyFileSystem files;
  std::set<std::string> synced;
  WriterOptions options;
  options.may_publish = [&] {
    synced = files.synced();
    return absl::OkStatus();
  };
  const auto saved = SaveSample(directory.path(), 3, 3, kRanks, options);
  ASSERT_TRUE(saved.ok()) << saved.status();
  const std::string temporary =
      JoinPath(directory.path(), StepName(3) + ".tmp-" + ReadManifest(saved->path)->info.id);
  EXPECT_TRUE(synced.contains(temporary));
  const auto names = files.List(saved->path);
  ASSERT_EQ(names->size(), 4u);  // two shards, index, manifest
  for (const std::string& name : *names) {
    EXPECT_TRUE(synced.contains(JoinPath(temporary, name))) << name;
  }
  EXPECT_TRUE(files.synced().contains(directory.path()));
}

}  // namespace
}  // namespace lt2
