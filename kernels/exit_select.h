// Which loop's output a token leaves with: the first t at which p_1 + … + p_t reaches a threshold
// (Ouro, arXiv 2510.25741; p as in exit_loss.h). Called after each loop in turn. No gradient.
#pragma once

#include "kernels/kernel.h"

namespace lt2 {

struct ExitSelectArgs {
  Tensor h_ND;  // what the head would read after this loop
  Tensor
      gate_N;  // this loop's gate logits, N elements; undefined at the last loop, where all leave
  double threshold = 1;
  Tensor left_N;  // 1 - (p_1 + … + p_t), 1 at first; -1 for who has left. Updated
  Tensor out_ND;  // rows of who leaves now are written
};

LT2_KERNEL(ExitSelect, ExitSelectArgs)

}  // namespace lt2
