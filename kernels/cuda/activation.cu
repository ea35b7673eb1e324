#include "kernels/activation.h"
#include "kernels/cuda/map.cuh"

namespace lt2::cuda {
namespace {

// T: what the function's value is kept in.
template <class T>
struct EluPlusOneOf {
  static __device__ float Value(float x) { return x > 0 ? x + 1 : ExpOf<T>(x); }
  static __device__ float Slope(float x) { return x > 0 ? 1 : ExpOf<T>(x); }
};

template <class T>
struct SiluOf {
  static __device__ float Value(float x) { return x * SigmoidOf<T>(x); }
  static __device__ float Slope(float x) {
    const float s = SigmoidOf<T>(x);
    return s + x * s * (1 - s);
  }
};

template <class T>
struct LogSigmoidOf {
  static __device__ float Value(float x) { return LogSigmoid(x); }
  static __device__ float Slope(float x) { return SigmoidOf<T>(-x); }
};

template <class F>
struct Forward {
  float factor;
  __device__ float operator()(float x) const { return factor * F::Value(x); }
};
template <class F>
struct Backward {
  float factor;
  __device__ float operator()(float dy, float x) const { return dy * factor * F::Slope(x); }
};

template <class T, class Fn>
void DispatchKind(Activation kind, const Fn& fn) {
  switch (kind) {
    case Activation::kEluPlusOne:
      return fn.template operator()<EluPlusOneOf<T>>();
    case Activation::kSilu:
      return fn.template operator()<SiluOf<T>>();
    case Activation::kLogSigmoid:
      return fn.template operator()<LogSigmoidOf<T>>();
  }
}

template <class In, class Out>
void RunForward(const Stream& stream, const ActivateForwardArgs& args) {
  DispatchKind<Out>(args.kind, [&]<class F>() {
    MapOf<Out, In>::Run(stream, "activation", Forward<F>{static_cast<float>(args.factor)}, args.y,
                        false, args.x);
  });
}

template <class In, class Out>
void RunBackward(const Stream& stream, const ActivateBackwardArgs& args) {
  DispatchKind<Out>(args.kind, [&]<class F>() {
    MapOf<In, Out, In>::Run(stream, "activation backward",
                            Backward<F>{static_cast<float>(args.factor)}, args.dx,
                            args.accumulate_dx, args.dy, args.x);
  });
}

// A log-decay is kept in float whatever it is made from.
template <class Fn>
void DispatchTypes(const Tensor& x, const Tensor& y, const Fn& fn) {
  if (x.dtype() == y.dtype()) {
    return DispatchType("activation", x.dtype(),
                        [&]<class T>() { fn.template operator()<T, T>(); });
  }
  CHECK(x.dtype() == DType::kBF16 && y.dtype() == DType::kF32)
      << "activation from " << x.dtype() << " to " << y.dtype();
  fn.template operator()<bf16, float>();
}

}  // namespace

void ActivateForward(Stream& stream, const ActivateForwardArgs& args) {
  DispatchTypes(args.x, args.y, [&]<class In, class Out>() { RunForward<In, Out>(stream, args); });
}

void ActivateBackward(Stream& stream, const ActivateBackwardArgs& args) {
  if (!args.dx.defined()) return;
  DispatchTypes(args.x, args.dy,
                [&]<class In, class Out>() { RunBackward<In, Out>(stream, args); });
}

}  // namespace lt2::cuda
