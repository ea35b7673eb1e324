// Attention of one new token a sequence against cached keys and values, for decoding.
#pragma once

#include "kernels/attention.h"

namespace lt2 {

// o [B, H, E] from q [B, H, D] and caches k [B, S, G, D], v [B, S, G, E] of capacity S, of which
// the first lengths[b] tokens are there, the current one included: it is the query's own key. A
// window sees the last `window` of them. A sequence of length 0 gives zeros. No gradient.
struct AttentionStepArgs {
  Tensor q_BHD, k_BSGD, v_BSGE;
  Tensor lengths_B;  // I32
  Tensor o_BHE;
  AttentionOptions options;
};

LT2_KERNEL(AttentionStep, AttentionStepArgs)

}  // namespace lt2
