#include "kernels/split_rms_norm.h"

#include <cmath>

#include "kernels/reference/store.h"

namespace lt2::reference {

void SplitRmsNormSums(Stream&, const SplitRmsNormSumsArgs& args) {
  const int64_t C = args.w.size();
  const double *x = args.x.data<double>(), *dy = DataOrNull(args.dy), *w = args.w.data<double>();
  for (int64_t n = 0; n < args.sums_N.size(); ++n) {
    double sum = 0;
    for (int64_t c = 0; c < C; ++c) {
      sum += x[n * C + c] * (dy == nullptr ? x[n * C + c] : dy[n * C + c] * w[c]);
    }
    args.sums_N.data<double>()[n] = sum;
  }
}

void SplitRmsNormForward(Stream&, const SplitRmsNormForwardArgs& args) {
  const int64_t C = args.w.size();
  for (int64_t n = 0; n < args.rstd_N.size(); ++n) {
    const double squares = args.squares_N.data<double>()[n];
    const double rstd = 1 / std::sqrt(squares / static_cast<double>(args.channels) + args.eps);
    args.rstd_N.data<double>()[n] = rstd;
    for (int64_t c = 0; c < C; ++c) {
      args.y.data<double>()[n * C + c] =
          args.w.data<double>()[c] * args.x.data<double>()[n * C + c] * rstd;
    }
  }
}

// As of rms_norm: the sum over channels that rstd's gradient is has been taken.
void SplitRmsNormBackward(Stream&, const SplitRmsNormBackwardArgs& args) {
  const int64_t C = args.w.size();
  for (int64_t n = 0; n < args.rstd_N.size(); ++n) {
    const double r = args.rstd_N.data<double>()[n], dr = args.products_N.data<double>()[n];
    for (int64_t c = 0; c < C; ++c) {
      const double dy = args.dy.data<double>()[n * C + c], x = args.x.data<double>()[n * C + c];
      const double w = args.w.data<double>()[c];
      Store(DataOrNull(args.dx), n * C + c,
            dy * w * r - dr * r * r * r * x / static_cast<double>(args.channels),
            args.accumulate_dx);
      args.dw.data<double>()[c] += dy * x * r;
    }
  }
}

}  // namespace lt2::reference
