#include "kernels/kl_divergence.h"

#include <cmath>

#include "kernels/reference/store.h"

namespace lt2::reference {
namespace {

double LogSumExp(const double* z, int64_t n, double temperature) {
  double largest = -INFINITY, sum = 0;
  for (int64_t v = 0; v < n; ++v) largest = std::max(largest, z[v] / temperature);
  for (int64_t v = 0; v < n; ++v) sum += std::exp(z[v] / temperature - largest);
  return largest + std::log(sum);
}

}  // namespace

void KlDivergenceForward(Stream&, const KlDivergenceForwardArgs& args) {
  const int64_t N = args.student_NV.dim(0), V = args.student_NV.dim(1);
  const double tau = args.temperature;
  double sum = 0;
  for (int64_t i = 0; i < N; ++i) {
    const double* s = args.student_NV.data<double>() + i * V;
    const double* t = args.teacher_NV.data<double>() + i * V;
    const double lse_s = LogSumExp(s, V, tau), lse_t = LogSumExp(t, V, tau);
    double kl = 0;
    for (int64_t v = 0; v < V; ++v) {
      const double log_p = t[v] / tau - lse_t, log_q = s[v] / tau - lse_s;
      kl += std::exp(log_p) * (log_p - log_q);
    }
    args.lse_N2.data<double>()[2 * i] = lse_s;
    args.lse_N2.data<double>()[2 * i + 1] = lse_t;
    args.kl_N.data<double>()[i] = kl;
    sum += kl;
  }
  args.loss.data<double>()[0] = args.weight * tau * tau * sum;
}

void KlDivergenceBackward(Stream&, const KlDivergenceBackwardArgs& args) {
  const int64_t N = args.student_NV.dim(0), V = args.student_NV.dim(1);
  const double tau = args.temperature;
  for (int64_t i = 0; i < N; ++i) {
    const double *s = args.student_NV.data<double>(), *t = args.teacher_NV.data<double>();
    const double lse_s = LogSumExp(s + i * V, V, tau), lse_t = LogSumExp(t + i * V, V, tau);
    for (int64_t v = i * V; v < (i + 1) * V; ++v) {
      const double difference = std::exp(s[v] / tau - lse_s) - std::exp(t[v] / tau - lse_t);
      Store(DataOrNull(args.dstudent_NV), v,
            args.dloss.data<double>()[0] * args.weight * tau * difference,
            args.accumulate_dstudent);
    }
  }
}

}  // namespace lt2::reference
