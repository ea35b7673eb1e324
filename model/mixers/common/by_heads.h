// Channels as heads of them: as many as are here.
#pragma once

#include "core/tape.h"

namespace lt2 {

// [N, heads · channels] -> [N, heads, channels].
inline Var ByHeads(const Var& x_NC, int64_t channels) {
  return Reshape(x_NC, {x_NC.value.dim(0), x_NC.value.dim(1) / channels, channels});
}
// And back.
inline Var FlatHeads(const Var& x_NHC) {
  const Tensor& x = x_NHC.value;
  return Reshape(x_NHC, {x.dim(0), x.dim(1) * x.dim(2)});
}

}  // namespace lt2
