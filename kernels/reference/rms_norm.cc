#include "kernels/rms_norm.h"

#include <cmath>

#include "kernels/reference/store.h"

namespace lt2::reference {
namespace {

// rstd is [N, groups], or [N] for one group.
int64_t GroupsOf(const Tensor& rstd) { return rstd.shape().rank() > 1 ? rstd.shape().back() : 1; }

}  // namespace

void RmsNormForward(Stream&, const RmsNormForwardArgs& args) {
  const int64_t groups = GroupsOf(args.rstd), d = args.w.size() / groups;
  for (int64_t n = 0; n < args.rstd.size(); ++n) {
    const double *x = args.x.data<double>() + n * d, *w = args.w.data<double>() + n % groups * d;
    double squares = 0;
    for (int64_t i = 0; i < d; ++i) squares += x[i] * x[i];
    const double rstd = 1 / std::sqrt(squares / d + args.eps);
    for (int64_t i = 0; i < d; ++i) args.y.data<double>()[n * d + i] = w[i] * x[i] * rstd;
    args.rstd.data<double>()[n] = rstd;
  }
}

// From y_i = w_i x_i r and dr/dx_j = -r³ x_j / D.
void RmsNormBackward(Stream&, const RmsNormBackwardArgs& args) {
  const int64_t groups = GroupsOf(args.rstd), d = args.w.size() / groups;
  const double* through = DataOrNull(args.through);
  double* dx = DataOrNull(args.dx);
  for (int64_t n = 0; n < args.rstd.size(); ++n) {
    const double* w = args.w.data<double>() + n % groups * d;
    double* dw = args.dw.data<double>() + n % groups * d;
    const double *x = args.x.data<double>() + n * d, *dy = args.dy.data<double>() + n * d;
    const double r = args.rstd.data<double>()[n];
    double dr = 0;
    for (int64_t i = 0; i < d; ++i) dr += dy[i] * w[i] * x[i];
    for (int64_t j = 0; j < d; ++j) {
      const double past = through == nullptr ? 0 : through[n * d + j];
      Store(dx, n * d + j, dy[j] * w[j] * r - dr * r * r * r * x[j] / d + past, args.accumulate_dx);
      dw[j] += dy[j] * x[j] * r;
    }
  }
}

}  // namespace lt2::reference
