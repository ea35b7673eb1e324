// Runs a recorded step again and compares bits: was what it left a transient fault, or does it
// come back?
#pragma once

#include "absl/status/statusor.h"
#include "launch/metrics.h"
#include "launch/trainer.h"

namespace lt2 {

struct ReplayResult {
  int64_t step = 0, from = 0;  // from: the step of the checkpoint that was gone on from
  // Recorded in metrics.jsonl, then of two runs; null where it is not finite.
  struct Numbers {
    JsonLine loss, grad_norm;
    bool operator==(const Numbers&) const = default;
  };
  Numbers recorded, first, second;
  bool same() const { return recorded == first && first == second; }
  // What to make of it, in words.
  std::string Verdict() const;
};

// Goes twice from the run's newest sound checkpoint before `step` to that step. The run directory
// is only read. Bits are those of a mesh and a build: use the ones the step ran on. NotFound if no
// such checkpoint or no record of the step is left; InvalidArgument if the run does not get so far.
// Collective.
absl::StatusOr<ReplayResult> Replay(const RunConfig& config, TrainOptions options, int64_t step,
                                    Communicator& world);

}  // namespace lt2
