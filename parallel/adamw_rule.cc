#include "parallel/adamw_rule.h"

#include "kernels/adamw.h"

namespace lt2 {

static_assert(int{kHyperLr} == int{kLearningRate} && int{kHyperGradScale} == int{kGradScale} &&
                  int{kHyperStep} == int{kStep} && int{kHyperSkip} == int{kSkip} &&
                  int{kHyperSize} == int{kAdamWHypers},
              "the kernel reads the optimizer's hyper tensor as it is");

void AdamWRule::Update(Stream& stream, const Tensor& hyper,
                       std::span<const UpdatePiece> pieces) const {
  std::vector<AdamWPiece> all;
  for (const UpdatePiece& piece : pieces) {
    all.push_back({.param = piece.value,
                   .grad = piece.gradient,
                   .m = piece.states[0],
                   .v = piece.states[1],
                   .value = piece.rounded,
                   .decay = piece.decay});
  }
  AdamW(stream, {.pieces = all,
                 .hyper = hyper,
                 .beta1 = config_.beta1,
                 .beta2 = config_.beta2,
                 .eps = config_.eps,
                 .weight_decay = config_.weight_decay});
}

}  // namespace lt2
