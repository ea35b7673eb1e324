#include "kernels/gated_rms_norm.h"

#include "kernels/reference/gate.h"
#include "kernels/reference/store.h"

namespace lt2::reference {

void GatedRmsNormForward(Stream&, const GatedRmsNormForwardArgs& args) {
  const int64_t v = args.w.size(), rows = args.x.size() / v;
  const double* w = args.w.data<double>();
  for (int64_t n = 0; n < rows; ++n) {
    const double *x = args.x.data<double>() + n * v, *gate = args.gate.data<double>() + n * v;
    double squares = 0;
    for (int64_t i = 0; i < v; ++i) squares += x[i] * x[i];
    const double r = 1 / std::sqrt(squares / v + args.eps);
    for (int64_t i = 0; i < v; ++i) {
      args.y.data<double>()[n * v + i] = w[i] * x[i] * r * Gate(args.kind, gate[i]);
    }
    args.rstd.data<double>()[n] = r;
  }
}

// From y_i = w_i x_i r act(gate_i) and dr/dx_j = -r³ x_j / V.
void GatedRmsNormBackward(Stream&, const GatedRmsNormBackwardArgs& args) {
  const int64_t v = args.w.size(), rows = args.x.size() / v;
  const double* w = args.w.data<double>();
  double *dx = DataOrNull(args.dx), *dgate = DataOrNull(args.dgate), *dw = args.dw.data<double>();
  for (int64_t n = 0; n < rows; ++n) {
    const double *x = args.x.data<double>() + n * v, *gate = args.gate.data<double>() + n * v;
    const double *dy = args.dy.data<double>() + n * v, r = args.rstd.data<double>()[n];
    double dr = 0;
    for (int64_t i = 0; i < v; ++i) dr += dy[i] * w[i] * x[i] * Gate(args.kind, gate[i]);
    for (int64_t j = 0; j < v; ++j) {
      const double act = Gate(args.kind, gate[j]);
      Store(dx, n * v + j, dy[j] * w[j] * r * act - dr * r * r * r * x[j] / v, args.accumulate_dx);
      Store(dgate, n * v + j, dy[j] * w[j] * x[j] * r * GateSlope(args.kind, gate[j]),
            args.accumulate_dgate);
      dw[j] += dy[j] * x[j] * r * act;
    }
  }
}

}  // namespace lt2::reference
