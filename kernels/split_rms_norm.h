// RMS normalisation of rows whose channels lie on several ranks: rms_norm.h over all of them, with
// the sums over channels exchanged, one number a row forward and one backward.
#pragma once

#include "core/tape.h"
#include "kernels/kernel.h"
#include "kernels/rank_link.h"

namespace lt2 {

// Over the channels here: sum x², or with dy, sum dy w x.
struct SplitRmsNormSumsArgs {
  Tensor x, dy, w;  // [N, C], [N, C], [C]
  Tensor sums_N;
};
// From the sums over all `channels` channels.
struct SplitRmsNormForwardArgs {
  Tensor x, w, squares_N, y, rstd_N;
  int64_t channels = 0;
  double eps = 0;
};
struct SplitRmsNormBackwardArgs {
  Tensor dy, x, w, rstd_N, products_N, dx, dw;
  int64_t channels = 0;
  bool accumulate_dx = false;
};
LT2_KERNEL(SplitRmsNormSums, SplitRmsNormSumsArgs)
LT2_KERNEL(SplitRmsNormForward, SplitRmsNormForwardArgs)
LT2_KERNEL(SplitRmsNormBackward, SplitRmsNormBackwardArgs)

// x [N, C] and w [C]: this rank's channels of C · ranks -> y [N, C]. Each run of `ranks` neighbours
// of the link norms channels of its own; 0: all ranks together. The link must outlive the tape.
Var SplitRmsNorm(Tape& tape, Var x, Param& w, double eps, RankLink& link, int ranks = 0);

}  // namespace lt2
