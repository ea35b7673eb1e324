// The smallest kernels: add into, fill, scale, cast; and passing a gradient on unchanged.
#pragma once

#include "core/tape.h"
#include "kernels/kernel.h"

namespace lt2 {

struct AccumulateArgs {
  Tensor to, from;  // to += from, same size and dtype
};
struct FillArgs {
  Tensor to;
  double value = 0;
};
struct ScaleArgs {
  Tensor to;
  double factor = 1;  // to *= factor
};
struct CastArgs {
  Tensor from, to;  // float32 to bfloat16, same size
};
LT2_KERNEL(Accumulate, AccumulateArgs)
LT2_KERNEL(Fill, FillArgs)
LT2_KERNEL(Scale, ScaleArgs)
LT2_KERNEL(Cast, CastArgs)

inline void AccumulateInto(Stream& stream, const Tensor& to, const Tensor& from) {
  Accumulate(stream, {.to = to, .from = from});
}
inline void Fill(Stream& stream, const Tensor& to, double value) {
  Fill(stream, FillArgs{.to = to, .value = value});
}
inline void Scale(Stream& stream, const Tensor& to, double factor) {
  Scale(stream, ScaleArgs{.to = to, .factor = factor});
}

// For operators whose input's gradient is dy itself: handed over without a copy where it is the
// first, added where one is there already. Nothing if dy is undefined or unwanted.
void PassGradient(Stream& stream, GradSlot& slot, const Tensor& dy);

}  // namespace lt2
