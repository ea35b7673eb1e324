// The ways along which the stages of a pipeline hand on activations and gradients.
#pragma once

#include <memory>

#include "parallel/communicator.h"

namespace lt2 {

// A stage's ways in and out: a group of two ranks for each neighbour and kind of message, so that
// on a GPU no message waits behind one of another way. Null where there is one stage.
struct PipelineLinks {
  static constexpr int kSender = 0, kReceiver = 1;  // ranks of each
  std::unique_ptr<Communicator> activations_in, activations_out, gradients_in, gradients_out;
};
// Every rank of `pp`, in the order of stages, calls it.
PipelineLinks MakePipelineLinks(Communicator& pp);
// For a dry run.
PipelineLinks MakeMetaPipelineLinks(int stages);

}  // namespace lt2
