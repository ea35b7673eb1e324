#include "kernels/qkv_conv.h"

namespace lt2::cpu {

void QkvConvForward(Stream& stream, const QkvConvForwardArgs& args) {
  QkvConvForwardInParts(stream, args);
}

void QkvConvBackward(Stream& stream, const QkvConvBackwardArgs& args) {
  QkvConvBackwardInParts(stream, args);
}

}  // namespace lt2::cpu
