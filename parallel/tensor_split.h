// How a tensor-parallel group divides heads. A count of heads that is not a multiple of the ranks
// must divide them: then several ranks hold the same head.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/param.h"

namespace lt2 {

struct TensorSplit {
  int ranks = 1;
  // Between layers a rank holds its share of the tokens (Megatron's sequence parallelism), so that
  // what is computed there gives a summand of its parameters' gradients.
  bool sequence = false;

  // That `heads` heads are cut into, for a ParamSplit; those on a rank.
  int64_t Parts(int64_t heads) const { return std::min<int64_t>(ranks, heads); }
  int64_t Here(int64_t heads) const { return heads / Parts(heads); }
};

// Of parameters that every rank holds and reads between layers.
inline ParamSplit BetweenLayers(const TensorSplit& split) {
  return {.whole_gradient = !split.sequence};
}

}  // namespace lt2
