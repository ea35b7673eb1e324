#include "launch/signals.h"

#include <pthread.h>
#include <signal.h>

#include <csignal>
#include <initializer_list>

namespace lt2 {
namespace {

volatile std::sig_atomic_t pending = 0;
volatile std::sig_atomic_t asked_to_end = 0;  // a TERM or INT came before

// Only what is allowed inside a handler: writes to sig_atomic_t, signal and raise.
void Handle(int signal) {
  if (signal == SIGTERM || signal == SIGINT) {
    if (asked_to_end) {
      std::signal(signal, SIG_DFL);
      std::raise(signal);
      return;
    }
    asked_to_end = 1;
  }
  if (!pending) pending = signal;
}

}  // namespace

void InstallSignalHandlers() {
  struct sigaction action = {};
  action.sa_handler = Handle;
  action.sa_flags = SA_RESTART;  // reads and writes under way go on
  sigemptyset(&action.sa_mask);
  sigset_t ours;
  sigemptyset(&ours);
  for (int signal : {SIGTERM, SIGINT, SIGUSR1, SIGUSR2}) {
    sigaction(signal, &action, nullptr);
    sigaddset(&ours, signal);
  }
  pthread_sigmask(SIG_UNBLOCK, &ours, nullptr);
  for (int signal : {SIGPIPE, SIGXFSZ}) std::signal(signal, SIG_IGN);
}

int PendingSignal() { return pending; }

void ClearPendingSignal() {
  pending = 0;
  asked_to_end = 0;
}

const char* SignalName(int signal) {
  switch (signal) {
    case SIGTERM:
      return "TERM";
    case SIGINT:
      return "INT";
    case SIGUSR1:
      return "USR1";
    case SIGUSR2:
      return "USR2";
  }
  return "none";
}

}  // namespace lt2
