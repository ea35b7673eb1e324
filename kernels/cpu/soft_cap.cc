#include "kernels/soft_cap.h"

#include <cmath>

#include "kernels/cpu/blocks.h"

namespace lt2::cpu {
namespace {

template <class T>
void Forward(const SoftCapForwardArgs& args) {
  const int64_t c = args.b.size(), size = args.x.size();
  const T *x = args.x.data<T>(), *b = args.b.data<T>(), cap = static_cast<T>(args.cap);
  T* y = args.y.data<T>();
  ForEachBlock(size / c, 64, size, [=](int64_t, int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      for (int64_t i = 0; i < c; ++i) y[n * c + i] = cap * std::tanh((x[n * c + i] + b[i]) / cap);
    }
  });
}

template <class T>
void Backward(const SoftCapBackwardArgs& args) {
  const int64_t c = args.db.size(), size = args.y.size(), rows = size / c;
  const T *dy = args.dy.data<T>(), *y = args.y.data<T>(), inverse = static_cast<T>(1 / args.cap);
  T* dx = DataOrNull<T>(args.dx);
  const bool accumulate = args.accumulate_dx;
  const RowSums<T> sums(rows, c);
  ForEachBlock(rows, sums.Block(rows), size, [=](int64_t block, int64_t begin, int64_t end) {
    T* db = sums.Line(block);
    for (int64_t n = begin; n < end; ++n) {
      for (int64_t i = 0; i < c; ++i) {
        const T t = y[n * c + i] * inverse, dz = dy[n * c + i] * (T(1) - t * t);
        db[i] += dz;
        if (dx != nullptr) dx[n * c + i] = (accumulate ? dx[n * c + i] : T(0)) + dz;
      }
    }
  });
  sums.AddTo(args.db.data<T>(), 0, c);
}

}  // namespace

void SoftCapForward(Stream&, const SoftCapForwardArgs& args) {
  DispatchFloat(args.x.dtype(), [&]<class T>() { Forward<T>(args); });
}

void SoftCapBackward(Stream&, const SoftCapBackwardArgs& args) {
  DispatchFloat(args.y.dtype(), [&]<class T>() { Backward<T>(args); });
}

}  // namespace lt2::cpu
