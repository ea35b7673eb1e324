#include "kernels/beta_gate.h"

#include "kernels/reference/gate.h"
#include "kernels/reference/store.h"

namespace lt2::reference {

void BetaGateForward(Stream&, const BetaGateForwardArgs& args) {
  for (int64_t i = 0; i < args.b.size(); ++i) {
    args.beta.data<double>()[i] = args.scale * Sigmoid(args.b.data<double>()[i]);
  }
}

void BetaGateBackward(Stream&, const BetaGateBackwardArgs& args) {
  for (int64_t i = 0; i < args.b.size(); ++i) {
    const double slope = GateSlope(GateKind::kSigmoid, args.b.data<double>()[i]);
    Store(DataOrNull(args.db), i, args.dbeta.data<double>()[i] * args.scale * slope,
          args.accumulate_db);
  }
}

}  // namespace lt2::reference
