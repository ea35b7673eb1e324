// One AdamW step (Loshchilov & Hutter, "Decoupled weight decay regularization", 2019).
//
//   g ← grad_scale g,  m ← β1 m + (1 - β1) g,  v ← β2 v + (1 - β2) g²
//   w ← w (1 - lr λ) - lr (m / (1 - β1^step)) / (sqrt(v / (1 - β2^step)) + ε)
#pragma once

#include <span>

#include "kernels/kernel.h"

namespace lt2 {

// What changes from step to step; it lives in the device's memory, so that a captured step reads
// new values. Elements of AdamWArgs::hyper.
enum AdamWHyper {
  kLearningRate,
  kGradScale,  // clipping and the division by the number of counted tokens
  kStep,       // 1 at the first update
  kSkip,       // not 0: nothing changes (the gradient was not finite)
  kAdamWHypers
};

// All of one float dtype and size, any shape: elements are independent, so a parameter may be cut
// into pieces anywhere without changing a bit.
struct AdamWPiece {
  Tensor param, grad, m, v;
  Tensor value;       // BF16: where it is there, param rounded
  bool decay = true;  // false: λ = 0 for this piece
};

// Pieces of one dtype, all of them in a launch or two on a GPU.
struct AdamWArgs {
  std::span<const AdamWPiece> pieces;
  Tensor hyper;  // F64 [kAdamWHypers]
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0;
};

LT2_KERNEL(AdamW, AdamWArgs)

}  // namespace lt2
