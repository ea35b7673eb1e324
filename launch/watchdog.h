// Ends all ranks when one makes no progress, and says who keeps the others waiting, where and in
// which collective. Says too what a rank waits for that is told to end meanwhile.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "core/place.h"
#include "launch/stall_report.h"
#include "parallel/communicator.h"

namespace lt2 {

class Watchdog {
 public:
  // Made by the thread that runs the rank's steps. Limits in seconds; 0: no limit. The first one
  // holds until StepDone is called once. `folder`: where ranks leave word for each other when they
  // stall; "": nowhere.
  Watchdog(Communicator& world, double first_step_limit, double stall_limit,
           const std::string& folder = "");
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;

  // This rank begins something; `phase` is a literal.
  void Progress(const char* phase);
  // A step is over: from here on the stall limit holds.
  void StepDone();

 private:
  void Watch();
  RankState State() const;
  void TellWhatASignalMeets();
  void End();

  Communicator& world_;
  const double stall_limit_;
  const StallReport report_;
  const PlaceView place_;
  std::mutex mutex_;
  std::condition_variable ended_;
  double limit_;  // guarded by mutex_, as all below
  const char* phase_ = "start";
  double since_;
  bool ending_ = false, signal_met_ = false;
  std::thread thread_;
};

}  // namespace lt2
