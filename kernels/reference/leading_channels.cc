#include "kernels/leading_channels.h"

#include "kernels/reference/store.h"

namespace lt2::reference {

void LeadingChannelsForward(Stream&, const LeadingChannelsForwardArgs& args) {
  const int64_t W = args.x_NW.dim(1), C = args.y_NC.dim(1);
  for (int64_t i = 0; i < args.y_NC.size(); ++i) {
    args.y_NC.data<double>()[i] = args.x_NW.data<double>()[i / C * W + i % C];
  }
}

void LeadingChannelsBackward(Stream&, const LeadingChannelsBackwardArgs& args) {
  const int64_t W = args.dx_NW.dim(1), C = args.dy_NC.dim(1);
  for (int64_t i = 0; i < args.dx_NW.size(); ++i) {
    const double dy = i % W < C ? args.dy_NC.data<double>()[i / W * C + i % W] : 0;
    Store(args.dx_NW.data<double>(), i, dy, args.accumulate_dx);
  }
}

}  // namespace lt2::reference
