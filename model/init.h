// Initial distributions (LT2, arXiv 2605.20670, appendix): truncated normals without depth scaling.
// Mixers whose papers start elsewhere say so in their headers (mlstm), and the gate of full
// attention starts at 0.
#pragma once

#include <cmath>

#include "core/param.h"

namespace lt2 {

// Standard deviation fan^(-1/2), cut at 3 sigma. `fan` is the model's width for embeddings and all
// projections, also those that see fewer inputs (the second of a low-rank pair, a map of a head's
// channels), and the hidden size for the feed-forward's output.
inline Init ProjectionInit(int64_t fan) {
  return {.kind = Init::Kind::kTruncatedNormal, .a = 1 / std::sqrt(static_cast<double>(fan))};
}

}  // namespace lt2
