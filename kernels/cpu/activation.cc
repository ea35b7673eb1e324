#include "kernels/activation.h"

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/simd.h"

namespace lt2::cpu {
namespace {

struct EluPlusOneOf {
  template <class T>
  static T Value(T x) {
    const T below = Exp(x < T(0) ? x : T(0));
    return x > T(0) ? x + T(1) : below;
  }
  template <class T>
  static T Slope(T x) {
    return Exp(x < T(0) ? x : T(0));
  }
};

struct SiluOf {
  template <class T>
  static T Value(T x) {
    return Silu(x);
  }
  template <class T>
  static T Slope(T x) {
    const T s = Sigmoid(x);
    return s + x * s * (T(1) - s);
  }
};

struct LogSigmoidOf {
  template <class T>
  static T Value(T x) {
    return LogSigmoid(x);
  }
  template <class T>
  static T Slope(T x) {
    return Sigmoid(-x);
  }
};

template <class Fn>
void Dispatch(Activation kind, const Fn& fn) {
  if (kind == Activation::kEluPlusOne) return fn.template operator()<EluPlusOneOf>();
  if (kind == Activation::kSilu) return fn.template operator()<SiluOf>();
  fn.template operator()<LogSigmoidOf>();
}

template <class T, class F>
void Forward(const ActivateForwardArgs& args) {
  const T *x = args.x.data<T>(), factor = static_cast<T>(args.factor);
  T* y = args.y.data<T>();
  const int64_t size = args.x.size();
  ForEachBlock(size, kElementBlock, size, [=](int64_t, int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) y[i] = factor * F::Value(x[i]);
  });
}

template <class T, class F>
void Backward(const ActivateBackwardArgs& args) {
  if (!args.dx.defined()) return;
  const T *dy = args.dy.data<T>(), *x = args.x.data<T>(), factor = static_cast<T>(args.factor);
  T* dx = args.dx.data<T>();
  const bool accumulate = args.accumulate_dx;
  const int64_t size = args.x.size();
  ForEachBlock(size, kElementBlock, size, [=](int64_t, int64_t begin, int64_t end) {
    T slope[kElementBlock];
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) slope[i - begin] = dy[i] * factor * F::Slope(x[i]);
    Store(dx + begin, slope, end - begin, accumulate);
  });
}

}  // namespace

void ActivateForward(Stream&, const ActivateForwardArgs& args) {
  DispatchFloat(args.x.dtype(),
                [&]<class T>() { Dispatch(args.kind, [&]<class F>() { Forward<T, F>(args); }); });
}

void ActivateBackward(Stream&, const ActivateBackwardArgs& args) {
  DispatchFloat(args.x.dtype(),
                [&]<class T>() { Dispatch(args.kind, [&]<class F>() { Backward<T, F>(args); }); });
}

}  // namespace lt2::cpu
