#include "kernels/channel_range.h"

#include "kernels/reference/store.h"

namespace lt2::reference {

void TakeChannels(Stream&, const TakeChannelsArgs& args) {
  const int64_t W = args.x_NW.dim(1), C = args.y_NC.dim(1);
  for (int64_t i = 0; i < args.y_NC.size(); ++i) {
    args.y_NC.data<double>()[i] = args.x_NW.data<double>()[i / C * W + args.first + i % C];
  }
}

void PutChannels(Stream&, const PutChannelsArgs& args) {
  const int64_t W = args.x_NW.dim(1), C = args.y_NC.dim(1);
  for (int64_t i = 0; i < args.y_NC.size(); ++i) {
    Store(args.x_NW.data<double>(), i / C * W + args.first + i % C, args.y_NC.data<double>()[i],
          args.accumulate_x);
  }
}

}  // namespace lt2::reference
