#include "kernels/repeat_heads.h"

#include "kernels/cpu/blocks.h"

namespace lt2::cpu {
namespace {

template <class T>
void Forward(const RepeatHeadsForwardArgs& args) {
  const int64_t k = args.x.dim(2), copies = args.y.dim(1) / args.x.dim(1);
  const T* x = args.x.data<T>();
  T* y = args.y.data<T>();
  // One of x's heads a row.
  ForEachBlock(args.x.size() / k, 32, args.y.size(), [=](int64_t, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t r = 0; r < copies; ++r) Store(y + (row * copies + r) * k, x + row * k, k, false);
    }
  });
}

template <class T>
void Backward(const RepeatHeadsBackwardArgs& args) {
  const int64_t k = args.dx.dim(2), copies = args.dy.dim(1) / args.dx.dim(1);
  const T* dy = args.dy.data<T>();
  T* dx = args.dx.data<T>();
  const bool accumulate = args.accumulate_dx;
  ForEachBlock(args.dx.size() / k, 32, args.dy.size(), [=](int64_t, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t r = 0; r < copies; ++r) {
        Store(dx + row * k, dy + (row * copies + r) * k, k, accumulate || r > 0);
      }
    }
  });
}

}  // namespace

void RepeatHeadsForward(Stream&, const RepeatHeadsForwardArgs& args) {
  DispatchFloat(args.x.dtype(), [&]<class T>() { Forward<T>(args); });
}

void RepeatHeadsBackward(Stream&, const RepeatHeadsBackwardArgs& args) {
  if (!args.dx.defined()) return;
  DispatchFloat(args.dy.dtype(), [&]<class T>() { Backward<T>(args); });
}

}  // namespace lt2::cpu
