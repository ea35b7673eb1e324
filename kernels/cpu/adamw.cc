#include "kernels/adamw.h"

#include <cmath>

#include "kernels/cpu/blocks.h"

namespace lt2::cpu {
namespace {

template <class T>
void Run(const AdamWArgs& args, const AdamWPiece& piece) {
  const double* hyper = args.hyper.data<double>();
  CHECK_GE(hyper[kStep], 1);
  const double lr = hyper[kLearningRate];
  // Constants are made in double and rounded once.
  const T grad_scale = static_cast<T>(hyper[kGradScale]);
  const T beta1 = static_cast<T>(args.beta1), new1 = static_cast<T>(1 - args.beta1);
  const T beta2 = static_cast<T>(args.beta2), new2 = static_cast<T>(1 - args.beta2);
  const T keep = static_cast<T>(piece.decay ? 1 - lr * args.weight_decay : 1);
  const T step_size = static_cast<T>(lr / (1 - std::pow(args.beta1, hyper[kStep])));
  const T v_scale = static_cast<T>(1 / (1 - std::pow(args.beta2, hyper[kStep])));
  const T eps = static_cast<T>(args.eps);
  T *param = piece.param.data<T>(), *m = piece.m.data<T>(), *v = piece.v.data<T>();
  const T* grad = piece.grad.data<T>();
  BFloat16* value = DataOrNull<BFloat16>(piece.value);
  const int64_t size = piece.param.size();
  CHECK(piece.grad.size() == size && piece.m.size() == size && piece.v.size() == size);
  ForEachBlock(size, kElementBlock, size, [&](int64_t, int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) {
      const T g = grad_scale * grad[i];
      m[i] = beta1 * m[i] + new1 * g;
      v[i] = beta2 * v[i] + new2 * (g * g);
      param[i] = keep * param[i] - step_size * m[i] / (std::sqrt(v_scale * v[i]) + eps);
    }
    for (int64_t i = begin; value != nullptr && i < end; ++i) {
      value[i] = BFloat16::Of(static_cast<float>(param[i]));
    }
  });
}

}  // namespace

void AdamW(Stream&, const AdamWArgs& args) {
  if (args.hyper.data<double>()[kSkip] != 0) return;
  for (const AdamWPiece& piece : args.pieces) {
    DispatchFloat(piece.param.dtype(), [&]<class T>() { Run<T>(args, piece); });
  }
}

}  // namespace lt2::cpu
