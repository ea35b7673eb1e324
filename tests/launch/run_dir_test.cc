#include "launch/run_dir.h"

#include <gtest/gtest.h>

#include "core/file.h"
#include "core/log.h"
#include "tests/support/temporary_directory.h"

namespace lt2 {
namespace {

TEST(RunDir, HasTheLayoutOfTheContract) {
  TemporaryDirectory directory;
  const std::string root = JoinPath(directory.path(), "runs/a");
  auto run = RunDir::Open(root);
  ASSERT_TRUE(run.ok()) << run.status();
  ASSERT_TRUE((*run)->Describe("[run]\nname = \"a\"\n", {{"mesh", "dp=2"}}).ok());
  ASSERT_TRUE((*run)->metrics().Event("start").ok());
  ASSERT_TRUE((*run)->metrics().Step({.step = 1}).ok());
  EXPECT_EQ(FileSystem::Get().List(root).value(),
            (std::vector<std::string>{"checkpoints", "config.toml", "env.json", "events.jsonl",
                                      "lock", "logs", "metrics.jsonl"}));
}

TEST(RunDir, ClearsWhatDeadRunsLeft) {
  TemporaryDirectory directory;
  FileSystem& files = FileSystem::Get();
  const std::string checkpoints = JoinPath(directory.path(), "checkpoints");
  for (const char* name : {"step-0000000002", "step-0000000003.tmp-ab", "step-0000000002.old-cd",
                           "step-0000000001.old-ef", "mine.tmp-x"}) {
    ASSERT_TRUE(files.MakeDirectories(JoinPath(checkpoints, name)).ok());
  }
  ASSERT_TRUE(files.WriteFile(JoinPath(directory.path(), "stop"), "").ok());
  ASSERT_TRUE(RunDir::Open(directory.path()).ok());
  EXPECT_EQ(files.List(checkpoints).value(),
            (std::vector<std::string>{"mine.tmp-x", "step-0000000001", "step-0000000002"}));
  EXPECT_FALSE(files.Exists(JoinPath(directory.path(), "stop")));
}

TEST(RunDir, LogsGoToTheirFiles) {
  TemporaryDirectory directory;
  const RunPaths paths{directory.path()};
  ASSERT_TRUE(RunDir::Open(directory.path()).ok());
  SetLogRank(0, 2, "here");
  LogToRunDir(paths, 0);
  LogInfo("an info");
  LogWarn("a warning");
  SetLogRank(1, 2, "here");
  LogToRunDir(paths, 1);
  LogInfo("unheard");
  LogWarn("another warning");
  SetLogSink({});
  SetLogRank(0, 1, "");
  EXPECT_EQ(FileSystem::Get().ReadFile(paths.log()).value(),
            "an info\nrank 0 (here): warning: a warning\n");
  EXPECT_EQ(FileSystem::Get().ReadFile(paths.rank_log(0)).value(),
            "rank 0 (here): warning: a warning\n");
  EXPECT_EQ(FileSystem::Get().ReadFile(paths.rank_log(1)).value(),
            "rank 1 (here): warning: another warning\n");
}

TEST(RunDir, TriggersAreTakenOnce) {
  TemporaryDirectory directory;
  const RunPaths paths{directory.path()};
  EXPECT_FALSE(TakeTrigger(paths.save_trigger()));
  ASSERT_TRUE(FileSystem::Get().WriteFile(paths.save_trigger(), "").ok());
  EXPECT_TRUE(TakeTrigger(paths.save_trigger()));
  EXPECT_FALSE(TakeTrigger(paths.save_trigger()));
  // A folder of that name is somebody's work.
  const std::string work = JoinPath(paths.stop_trigger(), "work");
  ASSERT_TRUE(FileSystem::Get().MakeDirectories(work).ok());
  EXPECT_FALSE(TakeTrigger(paths.stop_trigger()));
  EXPECT_TRUE(FileSystem::Get().IsDirectory(work));
}

}  // namespace
}  // namespace lt2
