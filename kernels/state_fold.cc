#include "kernels/state_fold.h"

namespace lt2 {

Cost CostOf(const StateFoldArgs& a) {
  const double others = static_cast<double>(a.links_R.dim(0) - 1);
  const double state = static_cast<double>(a.out_1GKV.size());
  const double inner = a.map == StateMap::kMatrix ? static_cast<double>(a.out_1GKV.dim(2)) : 1;
  return {.flops = others * 2 * state * inner,
          .bytes = static_cast<double>(a.states_RX.bytes() + a.maps_RX.bytes())};
}

Cost CostOf(const StateFoldMaxArgs& a) {
  return {.flops = 2.0 * static_cast<double>(a.parts_RX.size()),
          .bytes = static_cast<double>(a.parts_RX.bytes())};
}

}  // namespace lt2
