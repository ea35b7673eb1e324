// A pipeline's schedule as people look at it.
#pragma once

#include <string>

#include "parallel/pipeline_simulation.h"

namespace lt2 {

// A line for every stage and a column for every unit of time, in panels of at most `width` columns:
// F forward, B gradients of the input, W of the weights, H the head, a dot where a stage is idle.
// Under it what each stage works, and the visits that it holds at most.
std::string DrawSchedule(const PipelineTimes& times, int width);

// The same to scale, as an SVG file: jobs in four colours, named by micro-batch and loop.
std::string ScheduleSvg(const PipelineTimes& times);

}  // namespace lt2
