#include "kernels/checksum.h"

namespace lt2 {

Cost CostOf(const ChecksumsArgs& args) {
  Cost cost;
  for (const Tensor& x : args.x) cost.bytes += static_cast<double>(x.bytes());
  return cost;
}

}  // namespace lt2
