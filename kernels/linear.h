// Linear projection without bias: y = x wᵀ, one Gemm forward and one per gradient.
#pragma once

#include "core/tape.h"

namespace lt2 {

// x [..., I], w [O, I] -> y [..., O]. The weight gradient can be deferred. `rebuild`: a tape that
// rebuilds computes y again in backward, too.
Var Linear(Tape& tape, Var x, Param& w, bool rebuild = false);

}  // namespace lt2
