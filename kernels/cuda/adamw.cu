#include <algorithm>

#include "kernels/adamw.h"
#include "kernels/cuda/piece.cuh"

namespace lt2::cuda {
namespace {

struct Update {
  int64_t size;
  float *param, *m, *v;
  const float* grad;
  const double* hyper;
  double beta1, beta2, eps, weight_decay;
};

struct Constants {
  float grad_scale, beta1, new1, beta2, new2, keep, step_size, v_scale, eps;
};

// Made in double and rounded once.
__device__ inline Constants ConstantsOf(const Update& update) {
  const double lr = update.hyper[kLearningRate], step = update.hyper[kStep];
  return {.grad_scale = static_cast<float>(update.hyper[kGradScale]),
          .beta1 = static_cast<float>(update.beta1),
          .new1 = static_cast<float>(1 - update.beta1),
          .beta2 = static_cast<float>(update.beta2),
          .new2 = static_cast<float>(1 - update.beta2),
          .keep = static_cast<float>(1 - lr * update.weight_decay),
          .step_size = static_cast<float>(lr / (1 - pow(update.beta1, step))),
          .v_scale = static_cast<float>(1 / (1 - pow(update.beta2, step))),
          .eps = static_cast<float>(update.eps)};
}

template <int n>
__global__ void __launch_bounds__(256) UpdateKernel(Update update) {
  if (update.hyper[kSkip] != 0) return;
  __shared__ Constants c;
  if (threadIdx.x == 0) c = ConstantsOf(update);
  __syncthreads();
  const int64_t step = int64_t{gridDim.x} * 256 * n;
  for (int64_t i = (int64_t{blockIdx.x} * 256 + threadIdx.x) * n; i < update.size; i += step) {
    const Piece<n> grad = Load<n>(update.grad + i);
    Piece<n> m = Load<n>(update.m + i), v = Load<n>(update.v + i),
             param = Load<n>(update.param + i);
#pragma unroll
    for (int e = 0; e < n; ++e) {
      const float g = c.grad_scale * grad[e];
      m[e] = c.beta1 * m[e] + c.new1 * g;
      v[e] = c.beta2 * v[e] + c.new2 * (g * g);
      param[e] = c.keep * param[e] - c.step_size * m[e] / (sqrtf(c.v_scale * v[e]) + c.eps);
    }
    Store<n>(update.m + i, m);
    Store<n>(update.v + i, v);
    Store<n>(update.param + i, param);
  }
}

}  // namespace

void AdamW(Stream& stream, const AdamWArgs& args) {
  const int64_t size = args.param.size();
  CHECK(args.grad.size() == size && args.m.size() == size && args.v.size() == size);
  if (size == 0) return;
  const Update update{.size = size,
                      .param = Data<float>(args.param),
                      .m = Data<float>(args.m),
                      .v = Data<float>(args.v),
                      .grad = Data<float>(args.grad),
                      .hyper = Data<double>(args.hyper),
                      .beta1 = args.beta1,
                      .beta2 = args.beta2,
                      .eps = args.eps,
                      .weight_decay = args.decay ? args.weight_decay : 0};
  DispatchPieces<float>(size, {args.param, args.grad, args.m, args.v}, [&]<int n>() {
    const int64_t blocks = std::min<int64_t>(Blocks(size, 256 * n), 1056);
    UpdateKernel<n><<<blocks, 256, 0, Handle(stream)>>>(update);
  });
  CheckLaunch("adamw");
}

}  // namespace lt2::cuda
