// What a training step will hold and compute, from a dry run on kMeta: nothing is allocated.
#pragma once

#include <string>

#include "launch/train_step.h"

namespace lt2 {

struct MemoryPlan {
  int64_t peak_bytes = 0;            // tensors of this rank, at the worst moment of a step
  int64_t persistent_bytes = 0;      // weights, gradients, moments, batch: held between steps
  int64_t parameters = 0;            // elements of the whole model
  double step_flops = 0;             // of this rank's kernels, with recompute
  double model_flops_per_token = 0;  // forward and backward, loops counted, no recompute

  // One line for the log.
  std::string ToString() const;
};

// For rank `rank` of the mesh's data-parallel group. `diagnostics`: the step also reads out every
// loop, as logging intervals do.
MemoryPlan PlanMemory(StepOptions options, const Mesh& mesh, int rank, bool diagnostics = true);

// The policy that recomputes least and fits: none, mixer, block, loop. ResourceExhausted, with what
// the leanest one needs, if none does.
absl::StatusOr<RecomputePolicy> ChooseRecompute(StepOptions options, const Mesh& mesh,
                                                int64_t budget_bytes);

// Memory a rank may use: what a GPU has free, or what the machine and the control group leave now,
// shared by the ranks of the host.
int64_t MemoryBudget(Device device, int local_ranks);

// OK, or InvalidArgument saying what the plan needs, what there is, and what to change.
absl::Status CheckFits(const MemoryPlan& plan, int64_t budget_bytes);

}  // namespace lt2
