#include "kernels/head_scale.h"

#include "kernels/reference/store.h"

namespace lt2::reference {

void HeadScaleForward(Stream&, const HeadScaleForwardArgs& args) {
  const int64_t width = args.x_NHP.dim(2), numbers = args.s.size();
  for (int64_t i = 0; i < args.x_NHP.size(); ++i) {
    const double o = args.o_NHP.defined() ? args.o_NHP.data<double>()[i] : 0;
    args.y_NHP.data<double>()[i] =
        o + args.s.data<double>()[i / width % numbers] * args.x_NHP.data<double>()[i];
  }
}

void HeadScaleBackward(Stream&, const HeadScaleBackwardArgs& args) {
  const int64_t width = args.x_NHP.dim(2), numbers = args.s.size();
  const bool per_token = args.s.shape().rank() == 2;
  if (per_token && args.ds.defined() && !args.accumulate_ds) args.ds.Zero();
  for (int64_t i = 0; i < args.x_NHP.size(); ++i) {
    const double dy = args.dy_NHP.data<double>()[i];
    Store(DataOrNull(args.dx_NHP), i, dy * args.s.data<double>()[i / width % numbers],
          args.accumulate_dx);
    Store(DataOrNull(args.ds), i / width % numbers, dy * args.x_NHP.data<double>()[i], true);
  }
}

}  // namespace lt2::reference
