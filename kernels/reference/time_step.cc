#include "kernels/time_step.h"

#include <cmath>

#include "kernels/reference/store.h"

namespace lt2::reference {

void TimeStepForward(Stream&, const TimeStepForwardArgs& args) {
  const int64_t heads = args.A_log.size();
  for (int64_t i = 0; i < args.a.size(); ++i) {
    const double z = args.a.data<double>()[i] + args.dt_bias.data<double>()[i % heads];
    const double dt = z > 20 ? z : std::log1p(std::exp(z));
    args.dt.data<double>()[i] = dt;
    args.g.data<double>()[i] = -std::exp(args.A_log.data<double>()[i % heads]) * dt;
  }
}

void TimeStepBackward(Stream&, const TimeStepBackwardArgs& args) {
  const int64_t heads = args.A_log.size();
  for (int64_t i = 0; i < args.a.size(); ++i) {
    const int64_t h = i % heads;
    const double z = args.a.data<double>()[i] + args.dt_bias.data<double>()[h];
    const double ddt = args.ddt.defined() ? args.ddt.data<double>()[i] : 0;
    const double dg = args.dg.defined() ? args.dg.data<double>()[i] : 0;
    const double rate = -std::exp(args.A_log.data<double>()[h]);
    const double e = (ddt + rate * dg) * (z > 20 ? 1 : 1 / (1 + std::exp(-z)));
    Store(DataOrNull(args.da), i, e, args.accumulate_da);
    args.ddt_bias.data<double>()[h] += e;
    args.dA_log.data<double>()[h] += dg * rate * (z > 20 ? z : std::log1p(std::exp(z)));
  }
}

}  // namespace lt2::reference
