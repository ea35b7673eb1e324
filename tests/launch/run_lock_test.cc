// One holder at a time, over real processes that wait, die, stop and race.
#include "launch/run_lock.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <thread>

#include "core/file.h"
#include "core/trace.h"
#include "launch/lock_file.h"
#include "tests/support/temporary_directory.h"

namespace lt2 {
namespace {

constexpr LockOptions kFast{.heartbeat_seconds = 0.05, .silence_seconds = 0.6, .wait_seconds = 1.5};

// A process of its own, killed at the end. What it writes to `out` the parent reads.
class Child {
 public:
  explicit Child(const std::function<void(int out)>& run) {
    int ends[2];
    CHECK_EQ(pipe(ends), 0);
    pid_ = fork();
    if (pid_ == 0) {
      close(ends[0]);
      run(ends[1]);
      _exit(0);
    }
    close(ends[1]);
    in_ = ends[0];
  }
  ~Child() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    close(in_);
  }
  pid_t pid() const { return pid_; }
  void Signal(int signal) const { ASSERT_EQ(kill(pid_, signal), 0); }
  // Blocks for one byte; 0 if the child ended.
  char Read() const {
    char byte = 0;
    return read(in_, &byte, 1) == 1 ? byte : 0;
  }
  int Wait() const {
    int status = 0;
    CHECK_EQ(waitpid(pid_, &status, 0), pid_);
    return status;
  }

 private:
  pid_t pid_ = 0;
  int in_ = -1;
};

void Say(int out, char byte) { CHECK_EQ(write(out, &byte, 1), 1); }

// Takes the lock, says +; says a when it finds that it was overtaken.
Child Holder(const std::string& directory) {
  return Child([directory](int out) {
    auto lock = RunLock::Acquire(directory, kFast);
    Say(out, lock.ok() ? '+' : '-');
    while (lock.ok() && (*lock)->StillHeld().ok()) usleep(1000);
    Say(out, lock.ok() && absl::IsAborted((*lock)->StillHeld()) ? 'a' : '?');
    sleep(60);
  });
}

TEST(RunLock, EpochsRiseAndAReleasedLockIsFreeAtOnce) {
  TemporaryDirectory directory;
  const double begun = MonotonicSeconds();
  for (int64_t epoch = 1; epoch <= 4; ++epoch) {
    const auto lock = RunLock::Acquire(directory.path());  // the slow options of real runs
    ASSERT_TRUE(lock.ok()) << lock.status();
    EXPECT_EQ((*lock)->epoch(), epoch);
    EXPECT_TRUE((*lock)->StillHeld().ok());
  }
  EXPECT_LT(MonotonicSeconds() - begun, 2);
  EXPECT_EQ(FileSystem::Get().List(JoinPath(directory.path(), "lock"))->size(), 1u);
}

TEST(RunLock, IsRefusedWhileAnotherProcessLives) {
  TemporaryDirectory directory;
  const Child holder = Holder(directory.path());
  ASSERT_EQ(holder.Read(), '+');
  const double begun = MonotonicSeconds();
  const auto lock = RunLock::Acquire(directory.path(), kFast);
  EXPECT_GE(MonotonicSeconds() - begun, kFast.wait_seconds);
  ASSERT_TRUE(absl::IsFailedPrecondition(lock.status())) << lock.status();
  const std::string message(lock.status().message());
  const LockHolder here = LockHolder::ThisProcess(0);
  EXPECT_NE(message.find("pid " + std::to_string(holder.pid())), std::string::npos) << message;
  EXPECT_NE(message.find(here.host), std::string::npos) << message;
}

TEST(RunLock, IsTakenOverAtOnceFromAKilledProcess) {
  TemporaryDirectory directory;
  const Child holder = Holder(directory.path());
  ASSERT_EQ(holder.Read(), '+');
  holder.Signal(SIGKILL);
  usleep(50000);  // killed, but not collected: still in the process table
  const double begun = MonotonicSeconds();
  const auto lock = RunLock::Acquire(directory.path());
  ASSERT_TRUE(lock.ok()) << lock.status();
  EXPECT_LT(MonotonicSeconds() - begun, 2);
  EXPECT_EQ((*lock)->epoch(), 2);
}

TEST(RunLock, AStoppedHolderIsOvertakenAndKnowsIt) {
  TemporaryDirectory directory;
  const Child holder = Holder(directory.path());
  ASSERT_EQ(holder.Read(), '+');
  holder.Signal(SIGSTOP);
  const auto lock = RunLock::Acquire(directory.path(), kFast);
  ASSERT_TRUE(lock.ok()) << lock.status();
  EXPECT_EQ((*lock)->epoch(), 2);
  holder.Signal(SIGCONT);
  EXPECT_EQ(holder.Read(), 'a');
  EXPECT_TRUE((*lock)->StillHeld().ok());
}

TEST(RunLock, AnotherMachinesHolderIsJudgedByItsHeartbeat) {
  TemporaryDirectory directory;
  const std::string folder = JoinPath(directory.path(), "lock");
  ASSERT_TRUE(FileSystem::Get().MakeDirectories(folder).ok());
  LockHolder other{
      .host = "elsewhere", .machine = "m", .pid = 1, .started = 1, .job = "88", .epoch = 6};
  const std::string path = LockFilePath(folder, 6);
  ASSERT_TRUE(CreateLockFile(path, other).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(CreateLockFile(path, other)));

  std::atomic<bool> beating{true};
  std::thread heart([&] {
    while (beating) {
      TouchLockFile(path);
      usleep(20000);
    }
  });
  const auto refused = RunLock::Acquire(directory.path(), kFast);
  beating = false;
  heart.join();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused.status()));
  EXPECT_NE(refused.status().message().find("on elsewhere (job 88)"), std::string::npos)
      << refused.status();

  const auto lock = RunLock::Acquire(directory.path(), kFast);
  ASSERT_TRUE(lock.ok()) << lock.status();
  EXPECT_EQ((*lock)->epoch(), 7);
}

TEST(RunLock, AnUnreadableLockFileIsOvertakenWhenSilent) {
  TemporaryDirectory directory;
  const std::string folder = JoinPath(directory.path(), "lock");
  ASSERT_TRUE(FileSystem::Get().MakeDirectories(folder).ok());
  ASSERT_TRUE(FileSystem::Get().WriteFile(LockFilePath(folder, 3), "{\"host\":").ok());
  const auto lock = RunLock::Acquire(directory.path(), kFast);
  ASSERT_TRUE(lock.ok()) << lock.status();
  EXPECT_EQ((*lock)->epoch(), 4);
}

TEST(RunLock, OfManyContendersOneHoldsAtATime) {
  TemporaryDirectory directory;
  constexpr int kProcesses = 5, kRounds = 6;
  const std::string marker = JoinPath(directory.path(), "inside");
  std::vector<std::unique_ptr<Child>> contenders;
  for (int p = 0; p < kProcesses; ++p) {
    contenders.push_back(std::make_unique<Child>([&](int) {
      for (int round = 0; round < kRounds; ++round) {
        const auto lock = RunLock::Acquire(
            directory.path(),
            {.heartbeat_seconds = 0.05, .silence_seconds = 20, .wait_seconds = 60});
        if (!lock.ok()) _exit(1);
        const int inside = open(marker.c_str(), O_CREAT | O_EXCL | O_WRONLY, 0600);
        if (inside < 0) _exit(2);
        usleep(2000);
        close(inside);
        unlink(marker.c_str());
      }
    }));
  }
  for (const auto& contender : contenders) EXPECT_EQ(contender->Wait(), 0);
  const auto lock = RunLock::Acquire(directory.path(), kFast);
  ASSERT_TRUE(lock.ok());
  EXPECT_EQ((*lock)->epoch(), kProcesses * kRounds + 1);
}

}  // namespace
}  // namespace lt2
