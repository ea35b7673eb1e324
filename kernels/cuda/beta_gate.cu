#include "kernels/beta_gate.h"
#include "kernels/cuda/map.cuh"

namespace lt2::cuda {
namespace {

// beta and its gradient are float.
struct Strength {
  float scale;
  __device__ float operator()(float b) const { return scale * SigmoidOf<float>(b); }
};
struct Slope {
  float scale;
  __device__ float operator()(float dbeta, float b) const {
    const float s = SigmoidOf<float>(b);
    return dbeta * scale * s * (1 - s);
  }
};

}  // namespace

void BetaGateForward(Stream& stream, const BetaGateForwardArgs& args) {
  DispatchType("beta_gate", args.b.dtype(), [&]<class T>() {
    MapOf<float, T>::Run(stream, "beta_gate", Strength{static_cast<float>(args.scale)}, args.beta,
                         false, args.b);
  });
}

void BetaGateBackward(Stream& stream, const BetaGateBackwardArgs& args) {
  if (!args.db.defined()) return;
  DispatchType("beta_gate", args.b.dtype(), [&]<class T>() {
    MapOf<T, float, T>::Run(stream, "beta_gate backward", Slope{static_cast<float>(args.scale)},
                            args.db, args.accumulate_db, args.dbeta, args.b);
  });
}

}  // namespace lt2::cuda
