#include "kernels/token_log_probs.h"

namespace lt2 {

Cost CostOf(const TokenLogProbsArgs& args) {
  return {.flops = 4.0 * args.logits_NV.size(), .bytes = 1.0 * args.logits_NV.bytes()};
}

}  // namespace lt2
