#include "kernels/swiglu_ffn.h"

namespace lt2::cpu {

void SwiGluFfnForward(Stream& stream, const SwiGluFfnForwardArgs& args) {
  SwiGluFfnForwardInParts(stream, args);
}

void SwiGluFfnBackward(Stream& stream, const SwiGluFfnBackwardArgs& args) {
  SwiGluFfnBackwardInParts(stream, args);
}

}  // namespace lt2::cpu
