#include "kernels/adamw.h"

#include <cmath>

namespace lt2::reference {

void AdamW(Stream&, const AdamWArgs& args) {
  const double* hyper = args.hyper.data<double>();
  if (hyper[kSkip] != 0) return;
  for (const AdamWPiece& piece : args.pieces) {
    const double lr = hyper[kLearningRate], decay = piece.decay ? args.weight_decay : 0;
    for (int64_t i = 0; i < piece.param.size(); ++i) {
      double &w = piece.param.data<double>()[i], &m = piece.m.data<double>()[i];
      double& v = piece.v.data<double>()[i];
      const double g = hyper[kGradScale] * piece.grad.data<double>()[i];
      m = args.beta1 * m + (1 - args.beta1) * g;
      v = args.beta2 * v + (1 - args.beta2) * g * g;
      const double m_hat = m / (1 - std::pow(args.beta1, hyper[kStep]));
      const double v_hat = v / (1 - std::pow(args.beta2, hyper[kStep]));
      w = w * (1 - lr * decay) - lr * m_hat / (std::sqrt(v_hat) + args.eps);
      if (piece.value.defined()) {
        piece.value.data<BFloat16>()[i] = BFloat16::Of(static_cast<float>(w));
      }
    }
  }
}

}  // namespace lt2::reference
