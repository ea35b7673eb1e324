#include "kernels/step_decision.h"

namespace lt2 {

Cost CostOf(const StepScalarsArgs& args) {
  return {.flops = 2.0 * static_cast<double>(args.squares.size()),
          .bytes = static_cast<double>(args.squares.bytes() + 2 * args.scalars.bytes())};
}

Cost CostOf(const StepDecisionArgs& args) {
  return {.flops = static_cast<double>(args.scalars.size()),
          .bytes = static_cast<double>(args.scalars.bytes() + args.report.bytes())};
}

}  // namespace lt2
