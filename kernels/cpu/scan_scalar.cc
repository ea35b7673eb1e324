#include "kernels/scan_scalar.h"

#include "kernels/cpu/additive_scan.h"
#include "kernels/cpu/scalar_chunk.h"

namespace lt2::cpu {

void ScanScalarForward(Stream&, const ScanScalarForwardArgs& a) {
  RunAdditiveForward<ScalarChunk>(a);
}

void ScanScalarBackward(Stream&, const ScanScalarBackwardArgs& a) {
  RunAdditiveBackward<ScalarChunk>(a, a.dg_NG);
}

void ScanScalarStep(Stream&, const ScanScalarStepArgs& a) {
  DispatchFloat(a.v_BGV.dtype(), [&]<class T>() {
    RunAdditiveStep<T>(a, [&](int64_t b, int64_t h) {
      const T* g = a.g_BG.defined()          ? HeadRows<T>(a.g_BG, b, h)
                   : a.log_gamma_G.defined() ? a.log_gamma_G.data<T>() + h
                                             : nullptr;
      const T decay = g != nullptr ? Exp(*g) : T(1);
      return [decay](int64_t) { return decay; };
    });
  });
}

}  // namespace lt2::cpu
