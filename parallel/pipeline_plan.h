// Who computes, sends and receives what, in which order, when a looped stack is spread over
// pipeline stages: lists of jobs, made here and carried out elsewhere.
//
// The ring: stage r of P holds its part of the N shared blocks. A micro-batch visits the stages
// 0 … P - 1 and comes back to stage 0, T times; when it comes back for the last time it goes to the
// head, which is stage 0's, as the embedding is. The backward goes the other way. Micro-batches go
// in groups of P, the first of which takes the remainder too; in a group the loop is the slow
// index. Stage r begins with 2 (P - 1 - r) + (T - 1) · |first group| forwards, or for one loop as
// 1F1B does with P - 1 - r; then forwards and backwards take turns. For m >= P micro-batches
//
//   idle time / working time = (P - 1) / (T m)
//
// whatever a forward F, the input gradients Bi and the weight gradients W cost; where jobs of
// different length do not meet, one or two forwards more at the beginning make it so. ring-zb lets
// stage r hold back the weight gradients of r visits, to fill the drain with them (for one loop:
// ZB-H1 of Qi et al., arXiv 2401.10241), and sends input gradients at once: a third of that if
// F = Bi = W.
#pragma once

#include <cstdint>
#include <vector>

namespace lt2 {

enum class Pipeline : uint8_t { kRing, kRingZb };
const char* Name(Pipeline pipeline);  // "ring"

struct PipelineJob {
  enum class Kind : uint8_t {
    kForward,
    kHead,  // forward and backward of what follows the last loop
    kBackwardInput,
    kBackwardWeight,
    // Activations go to the next stage, gradients to the one before; of the visit that made them,
    // those of the head of loop T. They arrive in order, some before they are needed.
    kSendActivation,
    kReceiveActivation,
    kSendGradient,
    kReceiveGradient,
  };
  Kind kind = Kind::kForward;
  int micro_batch = 0;
  int loop = 0;  // of kHead: T
  bool operator==(const PipelineJob&) const = default;
};
const char* Name(PipelineJob::Kind kind);

// Of one stage's job each, in any unit.
struct PipelineCosts {
  double forward = 1, backward_input = 1, backward_weight = 1, head = 0;
  double message = 0;  // from the end of a send to when it can be received; costs no stage time
};

struct PipelineShape {
  Pipeline pipeline = Pipeline::kRing;
  int stages = 1, loops = 1, micro_batches = 1;  // micro_batches >= stages
  PipelineCosts costs = {};                      // what the order of jobs is made for
};

struct PipelinePlan {
  std::vector<std::vector<PipelineJob>> stages;  // each in order
  // So many messages of each kind a stage must be ready for before it takes one, lest stages wait
  // for each other: those of a first group larger than the ring come back before they are needed.
  int receives_ahead = 1;
};
PipelinePlan MakePipelinePlan(const PipelineShape& shape);
// Forwards and heads alone, of any number of micro-batches.
PipelinePlan MakeForwardPlan(int stages, int loops, int micro_batches);

}  // namespace lt2
