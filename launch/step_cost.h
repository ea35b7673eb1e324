// What a training step takes and holds on a mesh of a machine, from a dry run of one rank: every
// kernel at the machine's rate for it, every collective over the link of its group, the pipeline by
// its simulation.
#pragma once

#include <array>
#include <map>
#include <vector>

#include "core/cost_log.h"
#include "launch/machine.h"
#include "launch/memory_plan.h"
#include "parallel/pipeline_plan.h"

namespace lt2 {

// A step run dry as the rank with the most tokens and rows, in one pipeline stage.
struct DryStep {
  StepOptions options;
  MemoryPlan memory;
  // Of as many micro-batches as differ from each other, three at most: the second stands for all
  // but the first and the last.
  std::vector<CostLog::Call> calls;
  std::map<const void*, Axis> axes;  // of the calls' groups
  int micro_batches = 0;             // in `calls`

  // How often the step does what the call does.
  double Times(const CostLog::Call& call) const;
  // Neither forward nor backward.
  bool IsUpdate(const CostLog::Call& call) const { return call.phase == 2 * micro_batches; }
};
DryStep RunDry(StepOptions options, const Mesh& mesh);

// What a rank sends along one axis in a step, and how long its other work waits for it.
struct AxisTraffic {
  double messages = 0, bytes = 0, seconds = 0;
};

struct StepCost {
  double compute_s = 0;  // forward and backward of all micro-batches, with what is computed again
  double bubble_s = 0;   // in which the busiest stage waits for others
  double update_s = 0;
  std::array<AxisTraffic, 4> axes = {};  // by Axis
  double sent_s() const;
  double seconds() const { return compute_s + bubble_s + update_s + sent_s(); }
};

// On a mesh of any number of stages; the rest of it, and the micro-batches, as in the dry run.
StepCost CostOf(const DryStep& dry, const Machine& machine, Precision precision, const Mesh& mesh,
                Pipeline pipeline);

// Of the stage that holds most, likewise; step_flops: of a stage on average.
MemoryPlan MemoryOf(const DryStep& dry, const Mesh& mesh, Pipeline pipeline);

}  // namespace lt2
