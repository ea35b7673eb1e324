#include "kernels/exit_select.h"

#include <cmath>

namespace lt2::reference {

void ExitSelect(Stream&, const ExitSelectArgs& args) {
  const int64_t N = args.h_ND.dim(0), D = args.h_ND.dim(1);
  for (int64_t i = 0; i < N; ++i) {
    double& left = args.left_N.data<double>()[i];
    if (left < 0) continue;
    if (args.gate_N.defined()) {
      const double lambda = 1 / (1 + std::exp(-args.gate_N.data<double>()[i]));
      left *= 1 - lambda;
      if (1 - left < args.threshold) continue;
    }
    left = -1;
    for (int64_t d = 0; d < D; ++d) {
      args.out_ND.data<double>()[i * D + d] = args.h_ND.data<double>()[i * D + d];
    }
  }
}

}  // namespace lt2::reference
