#include "kernels/leading_channels.h"

namespace lt2 {

Cost CostOf(const LeadingChannelsForwardArgs& args) {
  return {.flops = 0, .bytes = 2.0 * args.y_NC.bytes()};
}

// As if it added, which it mostly does.
Cost CostOf(const LeadingChannelsBackwardArgs& args) {
  return {.flops = 1.0 * args.dy_NC.size(), .bytes = 1.0 * args.dy_NC.bytes() + args.dx_NW.bytes()};
}

Var LeadingChannels(Tape& tape, Var x, int64_t channels) {
  Shape shape = x.shape();
  const int64_t width = shape.back(), rows = shape.size() / width;
  CHECK(0 < channels && channels <= width) << channels << " of " << width;
  shape[shape.rank() - 1] = channels;
  Stream& stream = tape.stream();
  const Tensor y = Tensor::Empty({rows, channels}, x.value.dtype(), tape.device());
  LeadingChannelsForward(stream, {.x_NW = x.value.Reshape({rows, width}), .y_NC = y});
  auto backward = [&stream, rows, width, channels](std::span<const Tensor> dy,
                                                   std::span<GradSlot> dx) {
    if (!dx[0].wanted()) return;
    const bool accumulate = dx[0].accumulate();
    LeadingChannelsBackward(stream, {.dy_NC = dy[0].Reshape({rows, channels}),
                                     .dx_NW = dx[0].to().Reshape({rows, width}),
                                     .accumulate_dx = accumulate});
  };
  return tape.Record({x}, y.Reshape(shape),
                     {.name = "leading_channels", .input_grad = std::move(backward)});
}

}  // namespace lt2
