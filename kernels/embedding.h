// Rows of a table by token: y_n = w[ids_n].
#pragma once

#include "core/tape.h"
#include "kernels/kernel.h"

namespace lt2 {

struct EmbeddingForwardArgs {
  Tensor ids, w, y;  // I32 [N], [V, D], [N, D]
  // w is rows first_row … first_row + V - 1 of `vocabulary`; ids of the others give zeros.
  int64_t first_row = 0, vocabulary = 0;
};
// dw[ids_n] += dy_n, in order of n: the same bits on every run.
struct EmbeddingBackwardArgs {
  Tensor dy, ids, dw;
  int64_t first_row = 0;
};
LT2_KERNEL(EmbeddingForward, EmbeddingForwardArgs)
LT2_KERNEL(EmbeddingBackward, EmbeddingBackwardArgs)

// ids I32 [N] (or any shape, which y extends by D), w [V, D] -> y [N, D]. An id outside the
// vocabulary is a programmer's error: data is checked where it is read. Where w is held in part, as
// rows of the vocabulary, ids of the others give zeros: the sum over ranks is the embedding.
Var Embedding(Tape& tape, const Tensor& ids, Param& w);

}  // namespace lt2
