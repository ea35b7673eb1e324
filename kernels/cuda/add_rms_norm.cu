#include "kernels/add_rms_norm.h"
#include "kernels/cuda/rms_norm.cuh"

namespace lt2::cuda {

void AddRmsNormForward(Stream& stream, const AddRmsNormForwardArgs& args) {
  DispatchType("add_rms_norm", args.x.dtype(), [&]<class T>() {
    RunRmsForward<T>(stream, "add_rms_norm", args.x, args.residual, args.w, args.sum, args.y,
                     args.rstd, args.eps);
  });
}

}  // namespace lt2::cuda
