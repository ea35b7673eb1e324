#include "kernels/channel_range.h"

namespace lt2 {

Cost CostOf(const TakeChannelsArgs& args) { return {.flops = 0, .bytes = 2.0 * args.y_NC.bytes()}; }

// As if it added.
Cost CostOf(const PutChannelsArgs& args) {
  return {.flops = 1.0 * args.y_NC.size(), .bytes = 3.0 * args.y_NC.bytes()};
}

Var ChannelRange(Tape& tape, Var x, int64_t first, int64_t channels) {
  Shape shape = x.shape();
  const int64_t width = shape.back(), rows = shape.size() / width;
  CHECK(0 <= first && 0 < channels && first + channels <= width)
      << channels << " from " << first << " of " << width;
  shape[shape.rank() - 1] = channels;
  Stream& stream = tape.stream();
  const Tensor y = Tensor::Empty({rows, channels}, x.value.dtype(), tape.device());
  TakeChannels(stream, {.x_NW = x.value.Reshape({rows, width}), .y_NC = y, .first = first});
  auto backward = [&stream, rows, width, first, channels](std::span<const Tensor> dy,
                                                          std::span<GradSlot> dx) {
    if (!dx[0].wanted()) return;
    const bool accumulate = dx[0].accumulate();
    const Tensor to = dx[0].to();
    if (!accumulate) to.Zero();
    PutChannels(stream, {.y_NC = dy[0].Reshape({rows, channels}),
                         .x_NW = to.Reshape({rows, width}),
                         .first = first,
                         .accumulate_x = accumulate});
  };
  return tape.Record({x}, y.Reshape(shape),
                     {.name = "channel_range", .input_grad = std::move(backward)});
}

}  // namespace lt2
