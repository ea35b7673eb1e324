// Writes one new row per sequence into a cache of rows, for decoding.
#pragma once

#include "kernels/kernel.h"

namespace lt2 {

// cache [B, S, …] of capacity S gets x [B, …] at row positions[b] (I32, below S) of sequence b.
struct CacheAppendArgs {
  Tensor x_BC, positions_B, cache_BSC;
};
LT2_KERNEL(CacheAppend, CacheAppendArgs)

}  // namespace lt2
