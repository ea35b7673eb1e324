// The sum of squares of a tensor, in double whatever its dtype.
#pragma once

#include "kernels/kernel.h"

namespace lt2 {

// sum F64 [1] = sum of x², or += with accumulate. Non-finite elements give a non-finite sum.
struct SquaredNormArgs {
  Tensor x, sum;
  bool accumulate = false;
};
LT2_KERNEL(SquaredNorm, SquaredNormArgs)

}  // namespace lt2
