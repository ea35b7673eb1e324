#include "kernels/cuda/common.cuh"
#include "kernels/step_decision_rule.h"

namespace lt2::cuda {
namespace {

double* Raw(const Tensor& x) { return Data<double>(x); }

// The squares are added one after the other, as on the CPU; a block fetches them together.
__global__ void __launch_bounds__(256) ScalarsKernel(StepScalarsData data) {
  __shared__ double squares[256];
  double square = 0, bad = 0;
  for (int64_t first = 0; first < data.pieces; first += 256) {
    __syncthreads();
    const int64_t i = first + threadIdx.x;
    if (i < data.pieces) squares[threadIdx.x] = data.squares[i];
    __syncthreads();
    if (threadIdx.x > 0) continue;
    const int64_t here = min(int64_t{256}, data.pieces - first);
    for (int64_t j = 0; j < here; ++j) {
      if (IsFinite(squares[j])) {
        square += squares[j];
      } else {
        ++bad;
      }
    }
  }
  if (threadIdx.x == 0) FillScalars(data, square, bad);
}

__global__ void DecisionKernel(StepDecisionData data) { Decide(data); }

}  // namespace

void StepScalars(Stream& stream, const StepScalarsArgs& args) {
  ScalarsKernel<<<1, 256, 0, Handle(stream)>>>(DataOf(args, Raw));
  CheckLaunch("step_scalars");
}

void StepDecision(Stream& stream, const StepDecisionArgs& args) {
  DecisionKernel<<<1, 1, 0, Handle(stream)>>>(DataOf(args, Raw));
  CheckLaunch("step_decision");
}

}  // namespace lt2::cuda
