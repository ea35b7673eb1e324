#include "kernels/narrow_linear.h"

namespace lt2::reference {

void NarrowLinearForward(Stream& stream, const NarrowLinearForwardArgs& args) {
  NarrowLinearInParts(stream, args);
}

void NarrowLinearInput(Stream& stream, const NarrowLinearInputArgs& args) {
  NarrowLinearInParts(stream, args);
}

void NarrowLinearWeight(Stream& stream, const NarrowLinearWeightArgs& args) {
  NarrowLinearInParts(stream, args);
}

void NarrowLinearBackward(Stream& stream, const NarrowLinearBackwardArgs& args) {
  NarrowLinearInParts(stream, args.input());
  NarrowLinearInParts(stream, args.weight());
}

}  // namespace lt2::reference
