// Carries out a stage's part of a pipeline plan: moves activations and gradients round the ring and
// calls what computes.
#pragma once

#include "parallel/pipeline_links.h"
#include "parallel/pipeline_plan.h"

namespace lt2 {

// What a stage computes. Visits are named by micro-batch and loop.
class PipelineStage {
 public:
  virtual ~PipelineStage() = default;
  // What it is handed and hands on: a message's shape, dtype and device.
  virtual Tensor NewMessage() = 0;
  // x: undefined for loop 0 at stage 0, which embeds its tokens; for another loop at stage 0 it is
  // the output of the loop before.
  virtual Tensor Forward(int micro_batch, int loop, const Tensor& x) = 0;
  // Of the last loop's output; the gradient of it, undefined where no backward follows.
  virtual Tensor Head(int micro_batch, const Tensor& x) = 0;
  // The gradient of the visit's x; undefined where x was.
  virtual Tensor BackwardInput(int micro_batch, int loop, const Tensor& dy) = 0;
  // After BackwardInput; visits in that order.
  virtual void BackwardWeight(int micro_batch, int loop) = 0;
};

void RunPipeline(const PipelinePlan& plan, int stage, const PipelineLinks& links,
                 PipelineStage& compute);

}  // namespace lt2
