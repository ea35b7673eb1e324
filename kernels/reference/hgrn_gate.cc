#include "kernels/hgrn_gate.h"

#include <cmath>

#include "kernels/reference/gate.h"
#include "kernels/reference/store.h"

namespace lt2::reference {
namespace {

// The softmax over layers of column d.
std::vector<double> Shares(const Tensor& table_LD, int64_t d) {
  const int64_t layers = table_LD.dim(0), width = table_LD.dim(1);
  std::vector<double> shares(layers);
  double sum = 0;
  for (int64_t m = 0; m < layers; ++m) {
    sum += shares[m] = std::exp(table_LD.data<double>()[m * width + d]);
  }
  for (double& share : shares) share /= sum;
  return shares;
}

}  // namespace

void HgrnGateForward(Stream&, const HgrnGateForwardArgs& args) {
  const int64_t width = args.bound_D.size();
  for (int64_t i = 0; i < args.f_ND.size(); ++i) {
    const double f = args.f_ND.data<double>()[i], l = args.bound_D.data<double>()[i % width];
    const double k = (1 - l) * Sigmoid(-f);
    args.k_ND.data<double>()[i] = k;
    args.g_ND.data<double>()[i] = k < 0.5 ? std::log1p(-k) : std::log(l + (1 - l) * Sigmoid(f));
  }
}

void HgrnGateBackward(Stream&, const HgrnGateBackwardArgs& args) {
  const int64_t width = args.bound_D.size();
  if (args.dbound_D.defined() && !args.accumulate_dbound) args.dbound_D.Zero();
  for (int64_t i = 0; i < args.f_ND.size(); ++i) {
    const double f = args.f_ND.data<double>()[i], l = args.bound_D.data<double>()[i % width];
    const double decay = l + (1 - l) * Sigmoid(f);
    const double dg = args.dg_ND.defined() ? args.dg_ND.data<double>()[i] : 0;
    const double dk = args.dk_ND.defined() ? args.dk_ND.data<double>()[i] : 0;
    const double e = dg / decay - dk;  // the gradient of exp(g)
    Store(DataOrNull(args.df_ND), i, e * (1 - l) * Sigmoid(f) * Sigmoid(-f), args.accumulate_df);
    Store(DataOrNull(args.dbound_D), i % width, e * Sigmoid(-f), true);
  }
}

void LowerBoundForward(Stream&, const LowerBoundForwardArgs& args) {
  for (int64_t d = 0; d < args.bound_D.size(); ++d) {
    const std::vector<double> shares = Shares(args.table_LD, d);
    double bound = 0;
    for (int64_t m = 1; m <= args.layer; ++m) bound += shares[m];
    args.bound_D.data<double>()[d] = bound;
  }
}

void LowerBoundBackward(Stream&, const LowerBoundBackwardArgs& args) {
  const int64_t layers = args.table_LD.dim(0), width = args.table_LD.dim(1);
  for (int64_t d = 0; d < width; ++d) {
    const std::vector<double> shares = Shares(args.table_LD, d);
    double bound = 0;
    for (int64_t m = 1; m <= args.layer; ++m) bound += shares[m];
    for (int64_t m = 0; m < layers; ++m) {
      const double inside = 1 <= m && m <= args.layer ? 1 : 0;
      args.dtable_LD.data<double>()[m * width + d] +=
          shares[m] * (inside - bound) * args.dbound_D.data<double>()[d];
    }
  }
}

}  // namespace lt2::reference
