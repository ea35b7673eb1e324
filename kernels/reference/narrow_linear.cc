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

}  // namespace lt2::reference
