// RMS normalisation of rows whose channels lie on several ranks: rms_norm.h over all of them, with
// the sums over channels exchanged, one number a row forward and one backward.
#pragma once

#include "core/tape.h"
#include "kernels/kernel.h"
#include "kernels/rank_link.h"

namespace lt2 {

// x [N, C] and w [C]: this rank's channels of C · link.size() -> y [N, C].
Var SplitRmsNorm(Tape& tape, Var x, Param& w, double eps, RankLink& link);

}  // namespace lt2
