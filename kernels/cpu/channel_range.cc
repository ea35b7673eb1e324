#include "kernels/channel_range.h"

#include "kernels/cpu/blocks.h"

namespace lt2::cpu {
namespace {

constexpr int64_t kRowBlock = 32;

}  // namespace

void TakeChannels(Stream&, const TakeChannelsArgs& args) {
  const int64_t N = args.x_NW.dim(0), W = args.x_NW.dim(1), C = args.y_NC.dim(1);
  DispatchFloat(args.x_NW.dtype(), [&]<class T>() {
    const T* x = args.x_NW.data<T>() + args.first;
    T* y = args.y_NC.data<T>();
    ForEachBlock(N, kRowBlock, N * C, [=](int64_t, int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) std::copy_n(x + n * W, C, y + n * C);
    });
  });
}

void PutChannels(Stream&, const PutChannelsArgs& args) {
  const int64_t N = args.x_NW.dim(0), W = args.x_NW.dim(1), C = args.y_NC.dim(1);
  const bool accumulate = args.accumulate_x;
  DispatchFloat(args.x_NW.dtype(), [&]<class T>() {
    const T* y = args.y_NC.data<T>();
    T* x = args.x_NW.data<T>() + args.first;
    ForEachBlock(N, kRowBlock, N * C, [=](int64_t, int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) Store(x + n * W, y + n * C, C, accumulate);
    });
  });
}

}  // namespace lt2::cpu
