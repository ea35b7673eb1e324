#include "kernels/layer_norm.h"

#include <cmath>

#include "kernels/reference/store.h"

namespace lt2::reference {

void LayerNormForward(Stream&, const LayerNormForwardArgs& args) {
  const int64_t groups = args.rstd.size(), v = args.x.size() / groups, c = args.w.size();
  for (int64_t g = 0; g < groups; ++g) {
    const double* x = args.x.data<double>() + g * v;
    double mean = 0, variance = 0;
    for (int64_t i = 0; i < v; ++i) mean += x[i] / v;
    for (int64_t i = 0; i < v; ++i) variance += (x[i] - mean) * (x[i] - mean) / v;
    const double rstd = 1 / std::sqrt(variance + args.eps);
    for (int64_t i = 0; i < v; ++i) {
      const double w = args.w.data<double>()[(g * v + i) % c];
      args.y.data<double>()[g * v + i] = w * (x[i] - mean) * rstd;
    }
    args.mean.data<double>()[g] = mean;
    args.rstd.data<double>()[g] = rstd;
  }
}

// From y_i = w_i d_i r, d_i = x_i - mean: dr/dx_j = -r³ d_j / V, dd_i/dx_j = [i = j] - 1 / V.
void LayerNormBackward(Stream&, const LayerNormBackwardArgs& args) {
  const int64_t groups = args.rstd.size(), v = args.x.size() / groups, c = args.w.size();
  for (int64_t g = 0; g < groups; ++g) {
    const double mean = args.mean.data<double>()[g], r = args.rstd.data<double>()[g];
    const double *x = args.x.data<double>() + g * v, *dy = args.dy.data<double>() + g * v;
    double dr = 0, dmean = 0;
    for (int64_t i = 0; i < v; ++i) {
      const double w = args.w.data<double>()[(g * v + i) % c], d = x[i] - mean;
      dr += dy[i] * w * d;
      dmean -= dy[i] * w * r;
      args.dw.data<double>()[(g * v + i) % c] += dy[i] * d * r;
    }
    for (int64_t j = 0; j < v; ++j) {
      const double w = args.w.data<double>()[(g * v + j) % c];
      const double dx = dy[j] * w * r + dmean / v - dr * r * r * r * (x[j] - mean) / v;
      Store(DataOrNull(args.dx), g * v + j, dx, args.accumulate_dx);
    }
  }
}

}  // namespace lt2::reference
