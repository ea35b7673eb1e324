// When a run must have ended: after --max-minutes, or when its SLURM job does.
#pragma once

#include <optional>
#include <string>

namespace lt2 {

class Deadline {
 public:
  // From now. max_minutes: 0 for none. Of a job the end is SLURM_JOB_END_TIME, in seconds since
  // 1970, or where SLURM does not set that what squeue says.
  explicit Deadline(double max_minutes);

  // Whether two more steps and one and a half saves might not end in time.
  bool Near(double step_seconds, double save_seconds) const;
  // "in 47 min, the end of the SLURM job"; "" without one.
  std::string ToString() const;

 private:
  void NotAfter(double end, const char* reason);

  std::optional<double> end_;  // in monotonic seconds
  const char* reason_ = "";
};

}  // namespace lt2
