// `lt2 train`: a whole pretraining run on this rank, from an empty or half-finished run directory
// to its last checkpoint.
//
// The state of a run is (configuration, tokens consumed, parameters, moments): everything else is
// computed from these, so that a run resumes bit for bit, and on another mesh reads the same data.
#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "launch/run_config.h"
#include "parallel/communicator.h"

namespace lt2 {

struct TrainOptions {
  Device device;                // where the step is computed
  std::string run_dir;          // "": the configuration's
  std::string resume = "auto";  // auto, never, or a checkpoint's or run's path
  std::string init_from;        // a checkpoint whose weights alone start a new run
  int64_t max_steps = 0;   // end after this step, counted from the run's start; 0: the schedule
  double max_minutes = 0;  // stop (as a signal does) after so long; 0: never
  // > 0: run this recorded step again, from a checkpoint before it: write and delete nothing, and
  // do not validate.
  int64_t replay = 0;
  std::map<std::string, std::string> software;  // names and versions, for the run's env.json
};

struct TrainResult {
  bool stopped = false;  // early, with the state saved: run again
  int64_t from = 0;      // the step it began after
  int64_t step = 0, tokens = 0;
  double loss = 0;        // of the last step; NaN if there was none
  double grad_norm = 0;   // likewise
  double valid_loss = 0;  // the last one measured; NaN if none was
  std::string run_dir, checkpoint;
};

// Collective over `world`; every rank gets the same status. An error that only one rank sees in the
// middle of a step ends all ranks (Communicator::Abort).
absl::StatusOr<TrainResult> Train(const RunConfig& config, const TrainOptions& options,
                                  Communicator& world);

}  // namespace lt2
