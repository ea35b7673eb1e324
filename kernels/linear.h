// Linear projections without bias: y = x wᵀ, one Gemm forward and one per gradient.
#pragma once

#include "core/tape.h"

namespace lt2 {

// x [..., I], w [O, I] -> y [..., O]. The weight gradient can be deferred. Where a tape rebuilds
// products, y is made again if it is wider than x.
Var Linear(Tape& tape, Var x, Param& w);

// residual + x wᵀ in one product, rounded once; residual is of y's shape.
Var LinearPlus(Tape& tape, Var residual, Var x, Param& w);

}  // namespace lt2
