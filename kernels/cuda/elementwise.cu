#include "kernels/cuda/map.cuh"
#include "kernels/elementwise.h"

namespace lt2::cuda {
namespace {

struct Same {
  __device__ float operator()(float x) const { return x; }
};
struct Constant {
  float value;
  __device__ float operator()() const { return value; }
};
struct Times {
  float factor;
  __device__ float operator()(float x) const { return factor * x; }
};

// The few sums that are kept in double.
void AccumulateF64(const Stream& stream, double* to, const double* from, int64_t n) {
  ForEach(stream, "accumulate", n, [=] __device__(int64_t i) { to[i] += from[i]; });
}
void FillF64(const Stream& stream, double* to, double value, int64_t n) {
  ForEach(stream, "fill", n, [=] __device__(int64_t i) { to[i] = value; });
}
void ScaleF64(const Stream& stream, double* to, double factor, int64_t n) {
  ForEach(stream, "scale", n, [=] __device__(int64_t i) { to[i] *= factor; });
}

}  // namespace

void Accumulate(Stream& stream, const AccumulateArgs& args) {
  CHECK_EQ(args.to.size(), args.from.size());
  if (args.to.dtype() == DType::kF64) {
    return AccumulateF64(stream, Data<double>(args.to), Data<double>(args.from), args.to.size());
  }
  DispatchType("accumulate", args.to.dtype(), [&]<class T>() {
    MapOf<T, T>::Run(stream, "accumulate", Same{}, args.to, true, args.from);
  });
}

void Fill(Stream& stream, const FillArgs& args) {
  if (args.to.dtype() == DType::kF64) {
    return FillF64(stream, Data<double>(args.to), args.value, args.to.size());
  }
  DispatchType("fill", args.to.dtype(), [&]<class T>() {
    MapOf<T>::Run(stream, "fill", Constant{static_cast<float>(args.value)}, args.to, false);
  });
}

void Scale(Stream& stream, const ScaleArgs& args) {
  if (args.to.dtype() == DType::kF64) {
    return ScaleF64(stream, Data<double>(args.to), args.factor, args.to.size());
  }
  DispatchType("scale", args.to.dtype(), [&]<class T>() {
    MapOf<T, T>::Run(stream, "scale", Times{static_cast<float>(args.factor)}, args.to, false,
                     args.to);
  });
}

void Cast(Stream& stream, const CastArgs& args) {
  CHECK_EQ(args.to.size(), args.from.size());
  CHECK_EQ(args.from.dtype(), DType::kF32);
  MapOf<bf16, float>::Run(stream, "cast", Same{}, args.to, false, args.from);
}

}  // namespace lt2::cuda
