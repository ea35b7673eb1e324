// Claim 2 of LT2 (arXiv 2605.20670): T loops over attention to a window of w tokens see T times as
// far as one, while residual connections keep what is seen in effect near 1.5 w.
//
// Measured by gradients: of the hidden state behind T loops at a text's last token, with respect to
// the embeddings d tokens before it.
#pragma once

#include <span>
#include <vector>

#include "model/language_model.h"

namespace lt2 {

struct ReceptiveField {
  int64_t reach = 0;  // the farthest distance whose gradient is not exactly zero
  // [distance]: ‖∂h_t / ∂x_{t−d}‖_F up to a factor that all distances share.
  std::vector<double> influence;

  // The least distance within which this share of the summed influence lies, itself included.
  int64_t Within(double share) const;
  // The farthest distance with at least this part of the mean influence at distances 1 … w − 1.
  int64_t Above(double part, int64_t window) const;
  // Mean influence at distances (i − 1)(w − 1) + 1 … i (w − 1), over that of i = 1.
  double Hop(int64_t i, int64_t window) const;
};

// Of the first `loops` loops of the model. ids: rows of `length` tokens; random cotangents from the
// seed, averaged over rows.
ReceptiveField MeasureField(LanguageModel& model, int64_t loops, std::span<const int32_t> ids,
                            int64_t length, uint64_t seed);

}  // namespace lt2
