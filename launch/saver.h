// The checkpoints of a run: when one is due, what it holds, and what is said of it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "checkpoints/writer.h"
#include "launch/metrics.h"
#include "launch/resume.h"
#include "launch/run_dir.h"
#include "launch/train_step.h"

namespace lt2 {

class Saver {
 public:
  struct Hooks {
    std::function<void(const char* phase)> progress;                          // of this rank
    std::function<void(std::string_view event, const JsonLine& fields)> say;  // events.jsonl
  };
  // run_dir: of rank 0. All references must outlive the saver.
  Saver(const RunConfig& config, const Mesh& mesh, const Loader& loader, Communicator& world,
        const std::string& folder, const RunDir* run_dir, Hooks hooks);

  // Takes memory for copies and says how much. Collective.
  absl::Status Reserve(TrainStep& step);

  // Saves what the run is now, once the save before has ended. Collective.
  absl::Status Save(TrainStep& step, const RunState& state);
  // Whether checkpoint.every asks for a save when `step` ends.
  bool Due(int64_t step) const;
  // Before parameters or moments change.
  void AwaitCopy() { writer_.AwaitCopy(); }
  // Whether this rank has still to write: then GoOn would wait.
  bool Busy() const { return writer_.in_flight() && !writer_.LocalDone(); }
  // What can be done of a save in flight without waiting, when no rank is busy. Collective.
  absl::Status GoOn();
  // Waits until nothing is in flight. Collective.
  absl::Status Finish();

  // A checkpoint that was there when the run began.
  void Found(const std::string& path, int64_t step);
  // As after a save: there may be no room for the next one until then.
  void DeleteOld() const { writer_.DeleteOld(newest_); }
  const std::string& newest() const { return newest_; }  // "" if there is none
  int64_t saved_step() const { return saved_step_; }     // the last one begun, or found
  // How long a save takes until it is published: the longest so far.
  double seconds() const { return seconds_; }

 private:
  const RunConfig& config_;
  const Mesh& mesh_;
  const Loader& loader_;
  Communicator& world_;
  const Hooks hooks_;
  Writer writer_;
  std::string newest_;
  int64_t saved_step_ = -1;
  double saved_at_, seconds_ = 0;
};

}  // namespace lt2
