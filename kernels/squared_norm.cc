#include "kernels/squared_norm.h"

namespace lt2 {

Cost CostOf(const SquaredNormsArgs& args) {
  Cost cost;
  for (const Tensor& x : args.x) {
    cost.flops += 2.0 * static_cast<double>(x.size());
    cost.bytes += static_cast<double>(x.bytes());
  }
  return cost;
}

}  // namespace lt2
