// Rotary position embedding: pair i of a head turns by the angle position · theta^(-2i/D).
#pragma once

#include "core/tape.h"
#include "kernels/kernel.h"

namespace lt2 {

enum class RopeStyle : uint8_t { kHalf, kInterleaved };  // pairs (i, i + D/2), or (2i, 2i + 1)

struct RopeOptions {
  double theta = 10000;
  RopeStyle style = RopeStyle::kHalf;
};

// y = rotation of x, or of the opposite sense with `inverse`: the gradient is the inverse rotation.
struct RopeArgs {
  Tensor x, positions, y;  // [N, H, D] with D even, I32 [N] >= 0, [N, H, D]
  RopeOptions options;
  bool inverse = false, accumulate = false;
};
LT2_KERNEL(Rope, RopeArgs)

// Angles are computed in double whatever the dtype of x.
Var Rope(Tape& tape, Var x, const Tensor& positions, const RopeOptions& options);

}  // namespace lt2
