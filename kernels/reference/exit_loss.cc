#include "kernels/exit_loss.h"

#include <cmath>

namespace lt2::reference {
namespace {

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// p_1 … p_T of token i, by the definition.
std::vector<double> Exits(const std::vector<Tensor>& gates_N, int64_t i) {
  std::vector<double> p;
  double left = 1;
  for (const Tensor& gate : gates_N) {
    const double lambda = Sigmoid(gate.data<double>()[i]);
    p.push_back(left * lambda);
    left *= 1 - lambda;
  }
  p.push_back(left);
  return p;
}

double PLogP(double p) { return p > 0 ? p * std::log(p) : 0; }

}  // namespace

void ExitLossForward(Stream&, const ExitLossForwardArgs& args) {
  args.sums.Zero();
  double* sums = args.sums.data<double>();
  for (int64_t i = 0; i < args.targets_N.size(); ++i) {
    if (args.targets_N.data<int32_t>()[i] < 0) continue;
    const std::vector<double> p = Exits(args.gates_N, i);
    sums[kCountedSum] += 1;
    for (size_t t = 0; t < p.size(); ++t) {
      const double lse = args.lses[t].data<double>()[i];
      sums[kLossSum] += p[t] * args.losses[t].data<double>()[i];
      sums[kSquaredLseSum] += p[t] * lse * lse;
      sums[kExitEntropySum] -= PLogP(p[t]);
      sums[kExitProbabilitySums + t] += p[t];
    }
  }
}

// dp_u/dgate_t by the product rule: p_t (1 - λ_t) for u = t, -p_u λ_t for u > t.
void ExitLossBackward(Stream&, const ExitLossBackwardArgs& args) {
  const double* dsums = args.dsums.data<double>();
  const size_t T = args.losses.size();
  for (int64_t i = 0; i < args.targets_N.size(); ++i) {
    const bool counted = args.targets_N.data<int32_t>()[i] >= 0;
    const std::vector<double> p = Exits(args.gates_N, i);
    std::vector<double> dp(T, 0.0);
    for (size_t t = 0; t < T; ++t) {
      const double lse = args.lses[t].data<double>()[i];
      args.dlosses[t].data<double>()[i] = counted ? p[t] * dsums[kLossSum] : 0;
      args.dlses[t].data<double>()[i] = counted ? 2 * p[t] * lse * dsums[kSquaredLseSum] : 0;
      dp[t] = dsums[kLossSum] * args.losses[t].data<double>()[i] +
              dsums[kSquaredLseSum] * lse * lse -
              dsums[kExitEntropySum] * (p[t] > 0 ? std::log(p[t]) + 1 : 0) +
              dsums[kExitProbabilitySums + t];
    }
    for (size_t t = 0; t + 1 < T; ++t) {
      const double lambda = Sigmoid(args.gates_N[t].data<double>()[i]);
      double dgate = p[t] * (1 - lambda) * dp[t];
      for (size_t u = t + 1; u < T; ++u) dgate -= p[u] * lambda * dp[u];
      args.dgates_N[t].data<double>()[i] = counted ? dgate : 0;
    }
  }
}

}  // namespace lt2::reference
