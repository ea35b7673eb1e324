// The meshes on which a configuration trains fastest on so many ranks of a machine.
#pragma once

#include <vector>

#include "launch/run_config.h"
#include "launch/step_cost.h"

namespace lt2 {

struct MeshChoice {
  Mesh mesh;
  Pipeline pipeline = Pipeline::kRing;
  RecomputePolicy recompute = RecomputePolicy::kNone;
  int64_t micro_batches = 1;  // of a replica in a step
  MemoryPlan memory;          // of the rank that holds most
  StepCost cost;
  double tokens_per_s = 0;  // of all ranks
};

// What a configuration does on a mesh, with `policy`, as its ranks' stages of the pipeline do
// alike.
DryStep RunDry(const RunConfig& config, const Mesh& mesh, RecomputePolicy policy);

// One legal mesh under the policy that computes least of those that fit, or, if none does, under
// the leanest.
MeshChoice Examine(const RunConfig& config, const Machine& machine, const Mesh& mesh,
                   Pipeline pipeline);

// The fastest that fit, at most `most`, fastest first. InvalidArgument if none does: what the
// leanest needs, and the smallest change after which one fits; or that no mesh of so many ranks is
// legal.
absl::StatusOr<std::vector<MeshChoice>> BestMeshes(const RunConfig& config, const Machine& machine,
                                                   int ranks, int most);

// The same list, empty where none fits or is legal.
std::vector<MeshChoice> FittingMeshes(const RunConfig& config, const Machine& machine, int ranks,
                                      int most);

}  // namespace lt2
