// Linear projections without bias: y = x wᵀ, one Gemm forward and one per gradient.
#pragma once

#include "core/tape.h"
#include "kernels/row_sums.h"

namespace lt2 {

// x [..., I], w [O, I] -> y [..., O]. The weight gradient can be deferred. Where a tape rebuilds
// products, y is made again if it is wider than x.
Var Linear(Tape& tape, Var x, Param& w);
// The same where ranks have other summands: y is the own rows of the sum, which survives Recompute.
// Without `sums` it is Linear.
Var LinearSum(Tape& tape, const Var& x, Param& w, RowSums* sums);

// residual + x wᵀ in one product, rounded once; residual is of y's shape.
Var LinearPlus(Tape& tape, Var residual, Var x, Param& w);

}  // namespace lt2
