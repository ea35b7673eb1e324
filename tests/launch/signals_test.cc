#include "launch/signals.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>

#include <csignal>

namespace lt2 {
namespace {

TEST(Signals, TheFirstOneIsKept) {
  InstallSignalHandlers();
  ClearPendingSignal();
  EXPECT_EQ(PendingSignal(), 0);
  for (int signal : {SIGTERM, SIGINT, SIGUSR1, SIGUSR2}) {
    std::raise(signal);
    EXPECT_EQ(PendingSignal(), signal);
    ClearPendingSignal();
  }
  std::raise(SIGUSR1);
  std::raise(SIGUSR2);
  std::raise(SIGUSR2);  // asks again for what is asked already
  std::raise(SIGTERM);
  EXPECT_EQ(PendingSignal(), SIGUSR1);
  EXPECT_STREQ(SignalName(SIGUSR1), "USR1");
  ClearPendingSignal();
}

// A process inherits what its parent had blocked.
TEST(Signals, BlockedOnesAreHeard) {
  sigset_t usr1, before;
  sigemptyset(&usr1);
  sigaddset(&usr1, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &usr1, &before);
  InstallSignalHandlers();
  ClearPendingSignal();
  std::raise(SIGUSR1);
  EXPECT_EQ(PendingSignal(), SIGUSR1);
  ClearPendingSignal();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

TEST(SignalsDeathTest, ASecondTermOrIntEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto twice = [](int first, int second) {
    InstallSignalHandlers();
    ClearPendingSignal();
    std::raise(first);
    std::raise(second);
    std::_Exit(0);
  };
  EXPECT_EXIT(twice(SIGTERM, SIGTERM), testing::KilledBySignal(SIGTERM), "");
  EXPECT_EXIT(twice(SIGTERM, SIGINT), testing::KilledBySignal(SIGINT), "");
  EXPECT_EXIT(twice(SIGUSR1, SIGTERM), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace lt2
