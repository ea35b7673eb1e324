#include "kernels/add_rms_norm.h"

#include "kernels/rms_norm.h"

namespace lt2::reference {

void AddRmsNormForward(Stream& stream, const AddRmsNormForwardArgs& args) {
  const double *x = args.x.data<double>(), *residual = args.residual.data<double>();
  for (int64_t i = 0; i < args.x.size(); ++i) args.sum.data<double>()[i] = x[i] + residual[i];
  const RmsNormForwardArgs norm{
      .x = args.sum, .w = args.w, .y = args.y, .rstd = args.rstd, .eps = args.eps};
  reference::RmsNormForward(stream, norm);
}

}  // namespace lt2::reference
