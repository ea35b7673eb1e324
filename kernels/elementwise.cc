#include "kernels/elementwise.h"

namespace lt2 {

Cost CostOf(const AccumulateArgs& args) {
  CHECK_EQ(args.to.size(), args.from.size());
  return {.flops = 1.0 * args.to.size(), .bytes = 3.0 * args.to.bytes()};
}

Cost CostOf(const FillArgs& args) { return {.flops = 0, .bytes = 1.0 * args.to.bytes()}; }

Cost CostOf(const ScaleArgs& args) {
  return {.flops = 1.0 * args.to.size(), .bytes = 2.0 * args.to.bytes()};
}

Cost CostOf(const CastArgs& args) {
  CHECK_EQ(args.to.size(), args.from.size());
  return {.flops = 0, .bytes = 1.0 * (args.from.bytes() + args.to.bytes())};
}

void PassGradient(Stream& stream, GradSlot& slot, const Tensor& dy) {
  if (!slot.wanted() || !dy.defined()) return;
  if (slot.accumulate()) {
    AccumulateInto(stream, slot.to(), dy);
  } else {
    slot.Set(dy);
  }
}

}  // namespace lt2
