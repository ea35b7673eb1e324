// Scores of given tokens and the likeliest ones, from logits.
#pragma once

#include "kernels/kernel.h"

namespace lt2 {

// From logits [N, V] and targets [N] (I32): log softmax(logits_i)[target_i], 0 where the target is
// negative, and the first index of the largest logit. Undefined outputs are not wanted; targets may
// be undefined where log_probs is. No gradient.
struct TokenLogProbsArgs {
  Tensor logits_NV;
  Tensor targets_N;
  Tensor log_probs_N;
  Tensor argmax_N;  // I32
};

LT2_KERNEL(TokenLogProbs, TokenLogProbsArgs)

}  // namespace lt2
