#include "kernels/decay_gate.h"

#include <cmath>

#include "kernels/reference/store.h"

namespace lt2::reference {

void DecayGateForward(Stream&, const DecayGateForwardArgs& args) {
  const int64_t channels = args.dt_bias.size(), per_head = channels / args.A_log.size();
  for (int64_t i = 0; i < args.a.size(); ++i) {
    const int64_t c = i % channels;
    const double z = args.a.data<double>()[i] + args.dt_bias.data<double>()[c];
    const double softplus = z > 20 ? z : std::log1p(std::exp(z));
    args.g.data<double>()[i] = -std::exp(args.A_log.data<double>()[c / per_head]) * softplus;
  }
}

void DecayGateBackward(Stream&, const DecayGateBackwardArgs& args) {
  const int64_t channels = args.dt_bias.size(), per_head = channels / args.A_log.size();
  for (int64_t i = 0; i < args.a.size(); ++i) {
    const int64_t c = i % channels, h = c / per_head;
    const double z = args.a.data<double>()[i] + args.dt_bias.data<double>()[c];
    const double rate = -std::exp(args.A_log.data<double>()[h]), dg = args.dg.data<double>()[i];
    const double slope = z > 20 ? 1 : 1 / (1 + std::exp(-z));
    const double softplus = z > 20 ? z : std::log1p(std::exp(z));
    Store(DataOrNull(args.da), i, dg * rate * slope, args.accumulate_da);
    args.ddt_bias.data<double>()[c] += dg * rate * slope;
    args.dA_log.data<double>()[h] += dg * rate * softplus;
  }
}

}  // namespace lt2::reference
