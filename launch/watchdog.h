// Ends all ranks when one makes no progress: says in which phase, and what its last collectives
// were.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

#include "parallel/communicator.h"

namespace lt2 {

class Watchdog {
 public:
  // Limits in seconds; 0: no limit. The first one holds until StepDone is called once.
  Watchdog(Communicator& world, double first_step_limit, double stall_limit);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;

  // This rank begins something; `phase` is a literal.
  void Progress(const char* phase);
  // A step is over: from here on the stall limit holds.
  void StepDone();

 private:
  void Watch();

  Communicator& world_;
  const double stall_limit_;
  std::mutex mutex_;
  std::condition_variable ended_;
  double limit_;  // guarded by mutex_, as all below
  const char* phase_ = "start";
  double since_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace lt2
