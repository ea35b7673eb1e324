#include "kernels/head_loss.h"

#include <algorithm>
#include <cmath>

namespace lt2::reference {
namespace {

// Of token i with the rows of w that are here.
std::vector<double> Logits(const Tensor& x, const Tensor& w, int64_t i) {
  const int64_t V = w.dim(0), D = w.dim(1);
  std::vector<double> z(V, 0.0);
  for (int64_t v = 0; v < V; ++v) {
    for (int64_t d = 0; d < D; ++d)
      z[v] += x.data<double>()[i * D + d] * w.data<double>()[v * D + d];
  }
  return z;
}

}  // namespace

void HeadLossForward(Stream& stream, const HeadLossForwardArgs& args) {
  const int64_t N = args.x_ND.dim(0), V = args.w_VD.dim(0);
  double* sums = args.sums.data<double>();
  args.sums.Zero();
  args.loss_N.Zero();
  args.lse_N.Zero();
  if (args.keep_probabilities) args.logits.Zero();
  std::vector<std::vector<double>> z(N);  // empty where not counted
  const Tensor most_N = Tensor::Zeros({N}, DType::kF64, {});
  const Tensor exp_sum_2N = Tensor::Zeros({2, N}, DType::kF64, {});  // and the target's logit
  double* exp_sum = exp_sum_2N.data<double>();
  for (int64_t i = 0; i < N; ++i) {
    const int64_t target = args.targets_N.data<int32_t>()[i];
    CHECK_LT(target, args.vocabulary) << "target of token " << i;
    if (target < 0) continue;
    z[i] = Logits(args.x_ND, args.w_VD, i);
    most_N.data<double>()[i] = *std::max_element(z[i].begin(), z[i].end());
    const int64_t row = target - args.first_row;
    if (0 <= row && row < V) exp_sum[N + i] = z[i][row];
  }
  if (args.link != nullptr) args.link->Max(most_N);
  for (int64_t i = 0; i < N; ++i) {
    for (double z_v : z[i]) exp_sum[i] += std::exp(z_v - most_N.data<double>()[i]);
  }
  if (args.link != nullptr) args.link->Sum(exp_sum_2N);
  for (int64_t i = 0; i < N; ++i) {
    if (z[i].empty()) continue;
    const double lse = most_N.data<double>()[i] + std::log(exp_sum[i]);
    const double loss = lse - exp_sum[N + i];
    args.lse_N.data<double>()[i] = lse;
    args.loss_N.data<double>()[i] = loss;
    sums[kLossSum] += loss;
    sums[kSquaredLseSum] += lse * lse;
    sums[kCountedSum] += 1;
    for (int64_t v = 0; v < V && args.keep_probabilities; ++v) {
      args.logits.data<double>()[i * V + v] = std::exp(z[i][v] - lse);
    }
  }
  if (!args.dsums.defined()) return;
  reference::HeadLossBackward(stream, {.dsums = args.dsums,
                                       .x_ND = args.x_ND,
                                       .w_VD = args.w_VD,
                                       .targets_N = args.targets_N,
                                       .lse_N = args.lse_N,
                                       .dx_ND = args.dx_ND,
                                       .dw_VD = args.dw_VD,
                                       .first_row = args.first_row});
}

void HeadLossBackward(Stream&, const HeadLossBackwardArgs& args) {
  const int64_t N = args.x_ND.dim(0), V = args.w_VD.dim(0), D = args.w_VD.dim(1);
  if (args.dx_ND.defined() && !args.accumulate_dx) args.dx_ND.Zero();
  for (int64_t i = 0; i < N; ++i) {
    const int64_t target = args.targets_N.data<int32_t>()[i];
    if (target < 0) continue;
    const std::vector<double> z = Logits(args.x_ND, args.w_VD, i);
    const double lse = args.lse_N.data<double>()[i];
    double dloss = 0, dlse = 0;
    if (args.dsums.defined()) {
      dloss = args.dsums.data<double>()[kLossSum];
      dlse = 2 * lse * args.dsums.data<double>()[kSquaredLseSum];
    }
    if (args.dloss_N.defined()) dloss = args.dloss_N.data<double>()[i];
    if (args.dlse_N.defined()) dlse = args.dlse_N.data<double>()[i];
    for (int64_t v = 0; v < V; ++v) {
      double dz = (dloss + dlse) * std::exp(z[v] - lse);
      if (args.first_row + v == target) dz -= dloss;
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
