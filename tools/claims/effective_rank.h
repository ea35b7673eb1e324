// Claim 1 of LT2 (arXiv 2605.20670): T loops over a delta rule compose T transitions of the state,
//
//   A = A_T ··· A_1,  A_t = (I − β_t k_t k_tᵀ) diag(α_t),
//
// which differs from a diagonal matrix by rank T where a single loop differs by rank 1, as far as
// the loops' keys are not collinear. A mixer whose decay is diagonal never leaves rank 0.
//
// The transitions are read off the model itself: a decoding step from state S leaves A S + B, so
// that steps from 0 and from unit states give A. What couples the channels is then the block of A
// that leads from the second half of the key channels to the first: it does not see the diagonal,
// and has the rank of what was added to it, up to half the channels.
#pragma once

#include <span>
#include <vector>

#include "model/language_model.h"

namespace lt2 {

// Means over tokens, layers and heads, of the coupling block of the first T loops' product.
struct RankRow {
  int64_t loops = 0;      // T
  double rank = 0;        // singular values above 1e-9 of the largest; 0 where the block vanishes
  double rank_1_pct = 0;  // above 1e-2 of the largest
  double effective = 0;   // exp of the entropy of the singular values over their sum
  double overlap = 0;     // |cos| of the first halves of the keys of loops T − 1 and T
};

// Rows T = 1 … model loops. Every mixer's first state entry must be its [B, heads, K, V]. The
// tokens ids[skip …] are measured, the ones before only decoded.
std::vector<RankRow> MeasureRank(LanguageModel& model, std::span<const int32_t> ids, int64_t skip);

// Descending; `a` is rows × columns, row-major.
std::vector<double> SingularValues(std::vector<double> a, int64_t rows, int64_t columns);

}  // namespace lt2
