// An operator that waits for other ranks in the middle, and what is done in the meantime.
//
// It has two nodes on the record, one where it launches something and one where it has what came of
// it, with what was recorded meanwhile between them. Backward goes the other way: the second node's
// launches something, and the first one's, which waits for it, runs when the gradients of all that
// lies between are done.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/tape.h"

namespace lt2 {

// What needs nothing of the operator and may be done while it waits: called once.
using Meanwhile = std::function<void()>;
inline void Nothing() {}

class UnderWay {
 public:
  // What is left to do in backward, with the slots of the operator's inputs.
  using Rest = FinishGrad;

  // The first node, of the operator's inputs.
  UnderWay(Tape& tape, std::span<const Var> in, const char* name)
      : launched_(tape.Record(
            in, std::vector<Tensor>{Tensor::Zeros({1}, DType::kU8, {})},
            {.name = name,
             .input_grad = [rest = rest_](std::span<const Tensor>, std::span<GradSlot> dx) {
               std::exchange(*rest, nullptr)(dx);
             }})[0]) {}

  // The second node's only input.
  const Var& launched() const { return launched_; }
  // In the second node's backward, whose slot of launched() it is.
  void HandOver(GradSlot& slot, Rest rest) const {
    if (!slot.wanted()) return;
    *rest_ = std::move(rest);
    slot.Set(launched_.value);
  }

 private:
  const std::shared_ptr<Rest> rest_ = std::make_shared<Rest>();
  const Var launched_;
};

}  // namespace lt2
