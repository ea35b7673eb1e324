// What a pipeline plan takes, in time and in visits held at once, without carrying it out.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/pipeline_plan.h"

namespace lt2 {

enum class Sends : uint8_t {
  kEager,  // a send ends at once
  // It ends when the receiver has asked for it: for the plan's receives_ahead first ones of each
  // kind from the start on, for another one whenever it has taken one.
  kBlocking,
};

struct PipelineTimes {
  struct Span {
    double begin, end;
    PipelineJob job;
  };
  std::vector<std::vector<Span>> spans;  // by stage, of jobs that compute
  double makespan = 0;
  std::vector<double> busy;      // by stage
  std::vector<int> peak_visits;  // by stage: forward begun and backward not ended
  bool deadlock = false;         // some stage could not go on
  // Time that stages idle, of that in which the busiest works: the bubble.
  double bubble() const;
};

PipelineTimes Simulate(const PipelinePlan& plan, const PipelineCosts& costs,
                       Sends sends = Sends::kEager);

}  // namespace lt2
