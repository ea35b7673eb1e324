#include "kernels/branch_gate.h"

#include <cmath>

#include "kernels/reference/store.h"

namespace lt2::reference {

void BranchGateForward(Stream&, const BranchGateForwardArgs& args) {
  const int64_t E = args.o_NHE.dim(2);
  for (int64_t i = 0; i < args.o_NHE.size(); ++i) {
    double o = 0;
    for (int b = 0; b < kBranches; ++b) {
      const double gate = args.gates_NH3.data<double>()[i / E * kBranches + b];
      o += args.branches_NHE[b].data<double>()[i] / (1 + std::exp(-gate));
    }
    args.o_NHE.data<double>()[i] = o;
  }
}

void BranchGateBackward(Stream&, const BranchGateBackwardArgs& args) {
  const int64_t E = args.do_NHE.dim(2);
  const double* dy = args.do_NHE.data<double>();
  for (int64_t n = 0; n < args.gates_NH3.size(); ++n) {
    const int64_t row = n / kBranches, b = n % kBranches;
    const double sigma = 1 / (1 + std::exp(-args.gates_NH3.data<double>()[n]));
    double along = 0;
    for (int64_t i = row * E; i < (row + 1) * E; ++i) {
      along += dy[i] * args.branches_NHE[b].data<double>()[i];
      Store(DataOrNull(args.dbranches_NHE[b]), i, sigma * dy[i], args.accumulate_dbranches[b]);
    }
    Store(DataOrNull(args.dgates_NH3), n, along * sigma * (1 - sigma), args.accumulate_dgates);
  }
}

}  // namespace lt2::reference
