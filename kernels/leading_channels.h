// The first channels of every row: y [N, C] from x [N, W], C <= W. (Tensors have no views into
// rows.)
#pragma once

#include "core/tape.h"
#include "kernels/kernel.h"

namespace lt2 {

struct LeadingChannelsForwardArgs {
  Tensor x_NW, y_NC;
};
// dx = dy in the first C channels, 0 behind them.
struct LeadingChannelsBackwardArgs {
  Tensor dy_NC, dx_NW;
  bool accumulate_dx = false;
};
LT2_KERNEL(LeadingChannelsForward, LeadingChannelsForwardArgs)
LT2_KERNEL(LeadingChannelsBackward, LeadingChannelsBackwardArgs)

// x [..., W] -> y [..., channels].
Var LeadingChannels(Tape& tape, Var x, int64_t channels);

}  // namespace lt2
