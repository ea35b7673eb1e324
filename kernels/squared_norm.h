// Sums of squares of tensors, in double whatever their dtype.
#pragma once

#include <span>

#include "kernels/kernel.h"

namespace lt2 {

// sums F64 [x.size()]: of each x the sum of x². All x of one dtype. Non-finite elements give a
// non-finite sum.
struct SquaredNormsArgs {
  std::span<const Tensor> x;
  Tensor sums;
};
LT2_KERNEL(SquaredNorms, SquaredNormsArgs)

// sum: F64 [1].
struct SquaredNormArgs {
  Tensor x, sum;
};
inline void SquaredNorm(Stream& stream, const SquaredNormArgs& args) {
  SquaredNorms(stream, {.x = {&args.x, 1}, .sums = args.sum});
}

}  // namespace lt2
