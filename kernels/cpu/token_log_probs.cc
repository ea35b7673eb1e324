#include "kernels/token_log_probs.h"

#include <cmath>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/row_softmax.h"

namespace lt2::cpu {
namespace {

template <class T>
void Run(const TokenLogProbsArgs& args) {
  const int64_t N = args.logits_NV.dim(0), V = args.logits_NV.dim(1);
  ForEachBlock(N, 1, N * V, [&](int64_t i, int64_t, int64_t) {
    T* z = args.logits_NV.data<T>() + i * V;
    const T largest = RowMax(z, V);
    if (args.argmax_N.defined()) {
      args.argmax_N.data<int32_t>()[i] = static_cast<int32_t>(std::find(z, z + V, largest) - z);
    }
    if (!args.log_probs_N.defined()) return;
    const int64_t target = args.targets_N.data<int32_t>()[i];
    CHECK_LT(target, V) << "target of token " << i;
    const double log_sum = std::log(RowSumExp<false>(z, V, largest));
    args.log_probs_N.data<T>()[i] =
        target < 0 ? T(0) : static_cast<T>(z[target] - largest - log_sum);
  });
}

}  // namespace

void TokenLogProbs(Stream&, const TokenLogProbsArgs& args) {
  DispatchFloat(args.logits_NV.dtype(), [&]<class T>() { Run<T>(args); });
}

}  // namespace lt2::cpu
