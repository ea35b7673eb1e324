// How much attention goes to a document's first token (the "attention sink"): a diagnostic.
#pragma once

#include "kernels/attention.h"

namespace lt2 {

// Adds to mass[0] the sum, over heads and over tokens at positions >= 1 of their document, of the
// probability exp(scale q_i · k_first - lse_i) of the document's first token (0 where a window
// hides it, or where it is not among the tokens), and to mass[1] how many terms that were; the mean
// is their quotient. No gradient.
struct FirstTokenMassArgs {
  Tensor q_NHD, k_NGD, lse_NH;  // as Attention saw and gave them
  Tensor mass;                  // F64 [2]
  AttentionOptions options;
  Documents documents;
};

LT2_KERNEL(FirstTokenMass, FirstTokenMassArgs)

}  // namespace lt2
