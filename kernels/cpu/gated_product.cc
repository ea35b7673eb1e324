#include "kernels/gated_product.h"

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/gate.h"

namespace lt2::cpu {
namespace {

template <class T, class Gate>
void Forward(const GatedProductForwardArgs& args) {
  const T *x = args.x.data<T>(), *gate = args.gate.data<T>();
  T* y = args.y.data<T>();
  const int64_t size = args.x.size();
  ForEachBlock(size, kElementBlock, size, [=](int64_t, int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) y[i] = x[i] * Gate::Value(gate[i]);
  });
}

template <class T, class Gate>
void Backward(const GatedProductBackwardArgs& args) {
  const T *dy = args.dy.data<T>(), *x = args.x.data<T>(), *gate = args.gate.data<T>();
  T *dx = DataOrNull<T>(args.dx), *dgate = DataOrNull<T>(args.dgate);
  const bool accumulate_dx = args.accumulate_dx, accumulate_dgate = args.accumulate_dgate;
  const int64_t size = args.x.size();
  ForEachBlock(size, kElementBlock, size, [=](int64_t, int64_t begin, int64_t end) {
    if (dx != nullptr && dgate != nullptr && !accumulate_dx && !accumulate_dgate) {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) {
        T value, slope;
        Gate::ValueAndSlope(gate[i], value, slope);
        const T dy_i = dy[i], x_i = x[i];
        dx[i] = dy_i * value;
        dgate[i] = dy_i * x_i * slope;
      }
      return;
    }
    T to_dx[kElementBlock], to_dgate[kElementBlock];
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) {
      T value, slope;
      Gate::ValueAndSlope(gate[i], value, slope);
      to_dx[i - begin] = dy[i] * value;
      to_dgate[i - begin] = dy[i] * x[i] * slope;
    }
    Store(dx == nullptr ? dx : dx + begin, to_dx, end - begin, accumulate_dx);
    Store(dgate == nullptr ? dgate : dgate + begin, to_dgate, end - begin, accumulate_dgate);
  });
}

}  // namespace

void GatedProductForward(Stream&, const GatedProductForwardArgs& args) {
  DispatchFloat(args.x.dtype(), [&]<class T>() {
    DispatchGate(args.kind, [&]<class Gate>() { Forward<T, Gate>(args); });
  });
}

void GatedProductBackward(Stream&, const GatedProductBackwardArgs& args) {
  DispatchFloat(args.x.dtype(), [&]<class T>() {
    DispatchGate(args.kind, [&]<class Gate>() { Backward<T, Gate>(args); });
  });
}

}  // namespace lt2::cpu
