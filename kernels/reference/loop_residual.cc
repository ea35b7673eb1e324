#include "kernels/loop_residual.h"

#include "kernels/reference/store.h"

namespace lt2::reference {

void LoopResidualForward(Stream&, const LoopResidualForwardArgs& args) {
  const int64_t d = args.rho.size();
  const double *x = args.x.data<double>(), *previous = args.previous.data<double>();
  for (int64_t i = 0; i < args.x.size(); ++i) {
    args.y.data<double>()[i] = x[i] + args.rho.data<double>()[i % d] * previous[i];
  }
}

void LoopResidualBackward(Stream&, const LoopResidualBackwardArgs& args) {
  const int64_t d = args.rho.size();
  const double *dy = args.dy.data<double>(), *rho = args.rho.data<double>();
  for (int64_t i = 0; i < args.dy.size(); ++i) {
    Store(DataOrNull(args.dprevious), i, dy[i] * rho[i % d], args.accumulate_dprevious);
    args.drho.data<double>()[i % d] += dy[i] * args.previous.data<double>()[i];
  }
}

}  // namespace lt2::reference
