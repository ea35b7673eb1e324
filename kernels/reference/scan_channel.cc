#include "kernels/scan_channel.h"

#include <cmath>

#include "kernels/reference/additive_scan.h"

namespace lt2::reference {
namespace {

// (token, head) -> exp(g) of the K channels.
auto Decay(const Tensor& g_NGK) {
  return [=](int64_t token, int64_t head) {
    const double* g = RowAt(g_NGK, token, head);
    std::vector<double> decay(g, g + g_NGK.dim(2));
    for (double& x : decay) x = std::exp(x);
    return decay;
  };
}

}  // namespace

void ScanChannelForward(Stream&, const ScanChannelForwardArgs& a) {
  AdditiveForward(a, Decay(a.g_NGK));
}

void ScanChannelBackward(Stream&, const ScanChannelBackwardArgs& a) {
  AdditiveBackward(a, Decay(a.g_NGK),
                   [&](int64_t token, int64_t head, const std::vector<double>& dg) {
                     AddRow(a.dg_NGK, token, head, dg, true);
                   });
}

void ScanChannelStep(Stream&, const ScanChannelStepArgs& a) { AdditiveStep(a, Decay(a.g_BGK)); }

}  // namespace lt2::reference
