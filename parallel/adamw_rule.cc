#include "parallel/adamw_rule.h"

#include "kernels/adamw.h"

namespace lt2 {

static_assert(int{kHyperLr} == int{kLearningRate} && int{kHyperGradScale} == int{kGradScale} &&
                  int{kHyperStep} == int{kStep} && int{kHyperSkip} == int{kSkip} &&
                  int{kHyperSize} == int{kAdamWHypers},
              "the kernel reads the optimizer's hyper tensor as it is");

void AdamWRule::Update(Stream& stream, const UpdateArgs& args) const {
  AdamW(stream, {.param = args.value,
                 .grad = args.gradient,
                 .m = args.states[0],
                 .v = args.states[1],
                 .hyper = args.hyper,
                 .beta1 = config_.beta1,
                 .beta2 = config_.beta2,
                 .eps = config_.eps,
                 .weight_decay = config_.weight_decay,
                 .decay = args.decay});
}

}  // namespace lt2
