// Neighbouring channels of every row: y [N, C] are channels first … first + C - 1 of x [N, W].
// (Tensors have no views into rows.)
#pragma once

#include "core/tape.h"
#include "kernels/kernel.h"

namespace lt2 {

struct TakeChannelsArgs {
  Tensor x_NW, y_NC;
  int64_t first = 0;
};
// y becomes these channels of x, or is added to them. The others stay as they are.
struct PutChannelsArgs {
  Tensor y_NC, x_NW;
  int64_t first = 0;
  bool accumulate_x = false;
};
LT2_KERNEL(TakeChannels, TakeChannelsArgs)
LT2_KERNEL(PutChannels, PutChannelsArgs)

// x [..., W] -> y [..., channels].
Var ChannelRange(Tape& tape, Var x, int64_t first, int64_t channels);

}  // namespace lt2
