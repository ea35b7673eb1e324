#include "kernels/adamw.h"

namespace lt2 {

Cost CostOf(const AdamWArgs& args) {
  return {.flops = 14.0 * args.param.size(), .bytes = 7.0 * args.param.bytes()};
}

}  // namespace lt2
