// Whether two places hold the same bits, from a few bytes of each.
#pragma once

#include <span>

#include "kernels/kernel.h"

namespace lt2 {

// sums I32 [x.size(), 2], the low and the high half of a 64-bit number for each x, of
// float32 or float64: sum over its 32-bit words w_i of (2 i + 1) w_i. Any one word that differs
// changes it, and so do two that changed places. The order of sums does not matter.
struct ChecksumsArgs {
  std::span<const Tensor> x;
  Tensor sums;
};
LT2_KERNEL(Checksums, ChecksumsArgs)

}  // namespace lt2
