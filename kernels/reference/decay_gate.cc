#include "kernels/decay_gate.h"

#include "kernels/reference/gate.h"
#include "kernels/reference/store.h"

namespace lt2::reference {

void DecayGateForward(Stream&, const DecayGateForwardArgs& args) {
  const int64_t channels = args.dt_bias.size(), per_head = channels / args.A_log.size();
  for (int64_t i = 0; i < args.a.size(); ++i) {
    const int64_t c = i % channels;
    const double dt = Softplus(args.a.data<double>()[i] + args.dt_bias.data<double>()[c]);
    Store(DataOrNull(args.dt), i, dt, /*accumulate=*/false);
    args.g.data<double>()[i] = -std::exp(args.A_log.data<double>()[c / per_head]) * dt;
  }
}

void DecayGateBackward(Stream&, const DecayGateBackwardArgs& args) {
  const int64_t channels = args.dt_bias.size(), per_head = channels / args.A_log.size();
  for (int64_t i = 0; i < args.a.size(); ++i) {
    const int64_t c = i % channels, h = c / per_head;
    const double z = args.a.data<double>()[i] + args.dt_bias.data<double>()[c];
    const double ddt = args.ddt.defined() ? args.ddt.data<double>()[i] : 0;
    const double dg = args.dg.defined() ? args.dg.data<double>()[i] : 0;
    const double rate = -std::exp(args.A_log.data<double>()[h]);
    const double e = (ddt + rate * dg) * SoftplusSlope(z);
    Store(DataOrNull(args.da), i, e, args.accumulate_da);
    args.ddt_bias.data<double>()[c] += e;
    args.dA_log.data<double>()[h] += dg * rate * Softplus(z);
  }
}

}  // namespace lt2::reference
