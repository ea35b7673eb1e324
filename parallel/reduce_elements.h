// Element-wise reduction of equal arrays in a fixed order, so that the bits depend on the number of
// ranks alone.
#pragma once

#include <span>

#include "core/dtype.h"
#include "parallel/communicator.h"

namespace lt2 {

// out[i] = ((in[0][i] op in[1][i]) op in[2][i]) …; out may be one of the inputs. Of bf16 in
// float32, rounded at the end.
void ReduceInOrder(std::span<const void* const> in, void* out, int64_t elements, DType dtype,
                   Reduction op);

}  // namespace lt2
