#include "kernels/l2_norm.h"

#include <cmath>

#include "kernels/reference/store.h"

namespace lt2::reference {

void L2NormForward(Stream&, const L2NormForwardArgs& args) {
  const int64_t rows = args.rho.size(), d = args.x.size() / rows;
  for (int64_t n = 0; n < rows; ++n) {
    const double* x = args.x.data<double>() + n * d;
    double squares = 0;
    for (int64_t i = 0; i < d; ++i) squares += x[i] * x[i];
    const double rho = 1 / std::sqrt(squares + args.eps);
    for (int64_t i = 0; i < d; ++i) args.y.data<double>()[n * d + i] = x[i] * rho;
    args.rho.data<double>()[n] = rho;
  }
}

// With x = y / ρ: dy_i/dx_j = ρ δ_ij - ρ³ x_i x_j.
void L2NormBackward(Stream&, const L2NormBackwardArgs& args) {
  const int64_t rows = args.rho.size(), d = args.y.size() / rows;
  for (int64_t n = 0; n < rows; ++n) {
    const double *y = args.y.data<double>() + n * d, *dy = args.dy.data<double>() + n * d;
    const double rho = args.rho.data<double>()[n];
    double dot = 0;
    for (int64_t i = 0; i < d; ++i) dot += dy[i] * y[i] / rho;
    for (int64_t j = 0; j < d; ++j) {
      Store(DataOrNull(args.dx), n * d + j, rho * dy[j] - rho * rho * rho * (y[j] / rho) * dot,
            args.accumulate_dx);
    }
  }
}

}  // namespace lt2::reference
