#include "kernels/gated_product.h"

#include "kernels/reference/gate.h"
#include "kernels/reference/store.h"

namespace lt2::reference {

void GatedProductForward(Stream&, const GatedProductForwardArgs& args) {
  const double *x = args.x.data<double>(), *gate = args.gate.data<double>();
  for (int64_t i = 0; i < args.x.size(); ++i) {
    args.y.data<double>()[i] = x[i] * Gate(args.kind, gate[i]);
  }
}

void GatedProductBackward(Stream&, const GatedProductBackwardArgs& args) {
  const double *x = args.x.data<double>(), *gate = args.gate.data<double>();
  const double* dy = args.dy.data<double>();
  for (int64_t i = 0; i < args.x.size(); ++i) {
    const double dx = dy[i] * Gate(args.kind, gate[i]);
    const double dgate = dy[i] * x[i] * GateSlope(args.kind, gate[i]);
    Store(DataOrNull(args.dx), i, dx, args.accumulate_dx);
    Store(DataOrNull(args.dgate), i, dgate, args.accumulate_dgate);
  }
}

}  // namespace lt2::reference
