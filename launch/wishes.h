// What ranks wish for when a step ends: that the run stop, that it be saved. A signal may come to
// any rank; rank 0 alone looks at the time and at trigger files.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launch/deadline.h"
#include "launch/run_dir.h"
#include "launch/saver.h"

namespace lt2 {

// Places in a rank's wishes, each 0 for no. All ranks take the largest of each, in the step's one
// exchange. The first is the signal's number.
enum Wish { kStopSignal, kStopFile, kSave, kStillWriting, kWishes };

class Wishes {
 public:
  // Time counts from now: max_minutes (0: none), and the end of a SLURM job.
  Wishes(int rank, double max_minutes) {
    if (rank == 0) deadline_.emplace(max_minutes);
  }
  // Of rank 0: from now on it heeds time and the directory's triggers.
  void Heed(const RunPaths& paths) { paths_ = paths; }

  // At the end of `step`, of steps that take so long. Takes triggers away.
  std::vector<double> AtEndOf(int64_t step, double step_seconds, const Saver& saver) const;
  // Whether what is no step should be left so that the run can stop.
  bool Hurried(double step_seconds, const Saver& saver) const;
  // On rank 0 "in 47 min, the end of the SLURM job"; "" where there is no end.
  std::string End() const { return deadline_ ? deadline_->ToString() : ""; }

 private:
  bool Late(double step_seconds, const Saver& saver) const;

  std::optional<Deadline> deadline_;
  std::optional<RunPaths> paths_;
};

}  // namespace lt2
