#include "kernels/scan_channel.h"

#include "kernels/cpu/additive_scan.h"
#include "kernels/cpu/channel_chunk.h"

namespace lt2::cpu {

void ScanChannelForward(Stream&, const ScanChannelForwardArgs& a) {
  RunAdditiveForward<ChannelChunk>(a);
}

void ScanChannelBackward(Stream&, const ScanChannelBackwardArgs& a) {
  RunAdditiveBackward<ChannelChunk>(a, a.dg_NGK);
}

void ScanChannelStep(Stream&, const ScanChannelStepArgs& a) {
  DispatchFloat(a.v_BGV.dtype(), [&]<class T>() {
    RunAdditiveStep<T>(a, [&](int64_t b, int64_t h) {
      return [g = HeadRows<T>(a.g_BGK, b, h)](int64_t d) { return Exp(g[d]); };
    });
  });
}

}  // namespace lt2::cpu
