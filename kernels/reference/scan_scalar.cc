#include "kernels/scan_scalar.h"

#include <cmath>
#include <numeric>

#include "kernels/reference/additive_scan.h"

namespace lt2::reference {
namespace {

// (token, head) -> exp(g), the same for all K channels.
auto Decay(const Tensor& g, const Tensor& log_gamma, int64_t k_width) {
  return [=](int64_t token, int64_t head) {
    const double value = g.defined()           ? *RowAt(g, token, head)
                         : log_gamma.defined() ? log_gamma.data<double>()[head]
                                               : 0;
    return std::vector<double>(k_width, std::exp(value));
  };
}

}  // namespace

void ScanScalarForward(Stream&, const ScanScalarForwardArgs& a) {
  AdditiveForward(a, Decay(a.g_NG, a.log_gamma_G, a.q_NHK.dim(2)));
}

void ScanScalarBackward(Stream&, const ScanScalarBackwardArgs& a) {
  AdditiveBackward(a, Decay(a.g_NG, a.log_gamma_G, a.q_NHK.dim(2)),
                   [&](int64_t token, int64_t head, const std::vector<double>& dg) {
                     AddRow(a.dg_NG, token, head, {std::accumulate(dg.begin(), dg.end(), 0.0)},
                            true);
                   });
}

void ScanScalarStep(Stream&, const ScanScalarStepArgs& a) {
  AdditiveStep(a, Decay(a.g_BG, a.log_gamma_G, a.q_BHK.dim(2)));
}

}  // namespace lt2::reference
