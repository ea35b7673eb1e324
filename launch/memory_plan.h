// What a training step will hold and compute, from a dry run on kMeta: nothing is allocated.
#pragma once

#include <string>
#include <vector>

#include "launch/train_step.h"

namespace lt2 {

// Bytes of tensors of one rank.
struct MemoryPlan {
  int64_t peak_bytes = 0;        // at the worst moment of a step
  int64_t persistent_bytes = 0;  // held between steps: the next three
  int64_t weight_bytes = 0;      // with the masters of bfloat16 ones
  int64_t gradient_bytes = 0;
  int64_t moment_bytes = 0;          // and the batch
  int64_t activation_bytes = 0;      // a micro-batch's, held from its forward to its backward
  int64_t parameters = 0;            // elements of the whole model
  double step_flops = 0;             // of this rank's kernels, with recompute
  double model_flops_per_token = 0;  // forward and backward, loops counted, no recompute

  // What comes and goes: logits, gradients of activations, what is computed again.
  int64_t workspace_bytes() const { return peak_bytes - persistent_bytes - activation_bytes; }
  // One line for the log.
  std::string ToString() const;
};

// For rank `rank` of the mesh. `diagnostics`: the step also reads out every loop, as logging
// intervals do.
MemoryPlan PlanMemory(StepOptions options, const Mesh& mesh, int rank, bool diagnostics = true);
// With these groups of MakeMetaGroups. A CostLog of the caller gets what runs: phase 2 m is the
// forward of micro-batch m, 2 m + 1 its backward, 2 micro_batches what follows, -1 what precedes.
MemoryPlan PlanMemory(StepOptions options, const Mesh& mesh, const RankGroups& groups,
                      bool diagnostics);

// For the rank of the first stage that holds most.
MemoryPlan PlanMost(const StepOptions& options, const Mesh& mesh, bool diagnostics);

// The same under every policy, in the order of kRecomputePolicies.
struct PolicyPlan {
  RecomputePolicy policy;
  MemoryPlan memory;
};
std::vector<PolicyPlan> PlanPolicies(StepOptions options, const Mesh& mesh);

// Of those that fit, the one that computes least. ResourceExhausted, with what the leanest needs,
// if none does.
absl::StatusOr<RecomputePolicy> ChooseRecompute(const std::vector<PolicyPlan>& plans,
                                                int64_t budget_bytes);

// Memory a rank may use: what a GPU has free, or what the machine and the control group leave now,
// shared by the ranks of the host.
int64_t MemoryBudget(Device device, int local_ranks);

// OK, or InvalidArgument saying what the plan needs, what there is, and what to change.
absl::Status CheckFits(const MemoryPlan& plan, int64_t budget_bytes);

}  // namespace lt2
