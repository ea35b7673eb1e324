// Initial distributions (LT2, arXiv 2605.20670, appendix): truncated normals without depth scaling.
#pragma once

#include <cmath>

#include "core/param.h"

namespace lt2 {

// Standard deviation fan_in^(-1/2), cut at 3 sigma. Projections and embeddings use the model's
// width, the feed-forward's output its hidden size.
inline Init ProjectionInit(int64_t fan) {
  return {.kind = Init::Kind::kTruncatedNormal, .a = 1 / std::sqrt(static_cast<double>(fan))};
}

}  // namespace lt2
