#include "kernels/adamw.h"

namespace lt2 {

Cost CostOf(const AdamWArgs& args) {
  Cost cost;
  for (const AdamWPiece& piece : args.pieces) {
    cost.flops += 14.0 * static_cast<double>(piece.param.size());
    cost.bytes += 7.0 * static_cast<double>(piece.param.bytes());
    if (piece.value.defined()) cost.bytes += static_cast<double>(piece.value.bytes());
  }
  return cost;
}

}  // namespace lt2
