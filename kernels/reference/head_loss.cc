#include "kernels/head_loss.h"

#include <cmath>

namespace lt2::reference {
namespace {

// The logits of token i, and their log-sum-exp.
std::vector<double> Logits(const Tensor& x, const Tensor& w, int64_t i, double* lse) {
  const int64_t V = w.dim(0), D = w.dim(1);
  std::vector<double> z(V, 0.0);
  double largest = -INFINITY, sum = 0;
  for (int64_t v = 0; v < V; ++v) {
    for (int64_t d = 0; d < D; ++d)
      z[v] += x.data<double>()[i * D + d] * w.data<double>()[v * D + d];
    largest = std::max(largest, z[v]);
  }
  for (double z_v : z) sum += std::exp(z_v - largest);
  *lse = largest + std::log(sum);
  return z;
}

}  // namespace

void HeadLossForward(Stream& stream, const HeadLossForwardArgs& args) {
  const int64_t N = args.x_ND.dim(0), V = args.w_VD.dim(0);
  double* sums = args.sums.data<double>();
  args.sums.Zero();
  args.loss_N.Zero();
  args.lse_N.Zero();
  const bool keep = args.keep_probabilities;
  if (keep) args.logits.Zero();
  for (int64_t i = 0; i < N; ++i) {
    const int64_t target = args.targets_N.data<int32_t>()[i];
    CHECK_LT(target, V) << "target of token " << i;
    if (target < 0) continue;
    double lse;
    const std::vector<double> z = Logits(args.x_ND, args.w_VD, i, &lse);
    args.lse_N.data<double>()[i] = lse;
    args.loss_N.data<double>()[i] = lse - z[target];
    sums[kLossSum] += lse - z[target];
    sums[kSquaredLseSum] += lse * lse;
    sums[kCountedSum] += 1;
    for (int64_t v = 0; v < V && keep; ++v) {
      args.logits.data<double>()[i * V + v] = std::exp(z[v] - lse);
    }
  }
  if (!args.dsums.defined()) return;
  reference::HeadLossBackward(stream, {.dsums = args.dsums,
                                       .x_ND = args.x_ND,
                                       .w_VD = args.w_VD,
                                       .targets_N = args.targets_N,
                                       .dx_ND = args.dx_ND,
                                       .dw_VD = args.dw_VD});
}

void HeadLossBackward(Stream&, const HeadLossBackwardArgs& args) {
  const int64_t N = args.x_ND.dim(0), V = args.w_VD.dim(0), D = args.w_VD.dim(1);
  if (args.dx_ND.defined() && !args.accumulate_dx) args.dx_ND.Zero();
  for (int64_t i = 0; i < N; ++i) {
    const int64_t target = args.targets_N.data<int32_t>()[i];
    if (target < 0) continue;
    double lse;
    const std::vector<double> z = Logits(args.x_ND, args.w_VD, i, &lse);
    double dloss = 0, dlse = 0;
    if (args.dsums.defined()) {
      dloss = args.dsums.data<double>()[kLossSum];
      dlse = 2 * lse * args.dsums.data<double>()[kSquaredLseSum];
    }
    if (args.dloss_N.defined()) dloss = args.dloss_N.data<double>()[i];
    if (args.dlse_N.defined()) dlse = args.dlse_N.data<double>()[i];
    for (int64_t v = 0; v < V; ++v) {
      double dz = (dloss + dlse) * std::exp(z[v] - lse);
      if (v == target) dz -= dloss;
      for (int64_t d = 0; d < D; ++d) {
        const int64_t x_id = i * D + d, w_vd = v * D + d;
        if (args.dx_ND.defined())
          args.dx_ND.data<double>()[x_id] += dz * args.w_VD.data<double>()[w_vd];
        if (args.dw_VD.defined())
          args.dw_VD.data<double>()[w_vd] += dz * args.x_ND.data<double>()[x_id];
      }
    }
  }
}

}  // namespace lt2::reference
