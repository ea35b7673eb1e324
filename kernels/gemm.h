// Matrix product: c = op(a) op(b), or c += op(a) op(b), or c = addend + op(a) op(b).
#pragma once

#include "kernels/kernel.h"

namespace lt2 {

// Tensors are seen as matrices: all extents but the last are rows. op(a) is [m, k], op(b) [k, n],
// c [m, n]; transpose_x says that x is stored the other way round. All of one dtype, but c may be
// float32 where a and b are bfloat16: sums are float32 in any case.
struct GemmArgs {
  Tensor a, b, c;
  bool transpose_a = false, transpose_b = false;
  bool accumulate = false;
  Tensor addend = {};  // of c's shape and dtype; not with accumulate. Added before rounding
};
LT2_KERNEL(Gemm, GemmArgs)

// The extents of a product; CHECKs that a, b and c fit together.
struct GemmSizes {
  int64_t m, n, k;
};
GemmSizes SizesOf(const GemmArgs& args);

}  // namespace lt2
