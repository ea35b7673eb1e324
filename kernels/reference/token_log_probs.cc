#include "kernels/token_log_probs.h"

#include <algorithm>
#include <cmath>

namespace lt2::reference {

void TokenLogProbs(Stream&, const TokenLogProbsArgs& args) {
  const int64_t N = args.logits_NV.dim(0), V = args.logits_NV.dim(1);
  for (int64_t i = 0; i < N; ++i) {
    const double* z = args.logits_NV.data<double>() + i * V;
    const int64_t best = std::max_element(z, z + V) - z;
    if (args.argmax_N.defined()) args.argmax_N.data<int32_t>()[i] = static_cast<int32_t>(best);
    if (!args.log_probs_N.defined()) continue;
    const int64_t target = args.targets_N.data<int32_t>()[i];
    CHECK_LT(target, V) << "target of token " << i;
    double sum = 0;
    for (int64_t v = 0; v < V; ++v) sum += std::exp(z[v] - z[best]);
    args.log_probs_N.data<double>()[i] = target < 0 ? 0 : z[target] - z[best] - std::log(sum);
  }
}

}  // namespace lt2::reference
