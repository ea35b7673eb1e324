#include "kernels/exit_loss.h"

#include <cmath>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/simd.h"

namespace lt2::cpu {
namespace {

constexpr int64_t kTokenBlock = 256;

template <class T>
using Pointers = std::vector<T*>;

template <class T>
Pointers<T> PointersOf(const std::vector<Tensor>& tensors) {
  Pointers<T> pointers;
  for (const Tensor& tensor : tensors) pointers.push_back(tensor.data<T>());
  return pointers;
}

// One token's way out, in double: a few numbers against a row of logits. In logarithms, so that a
// gate however sure of itself leaves every log p finite.
struct Exits {
  std::vector<double> lambda, p, log_p;

  explicit Exits(size_t loops) : lambda(loops, 1.0), p(loops), log_p(loops) {}

  template <class T>
  void Read(const Pointers<T>& gates, int64_t i) {
    double log_left = 0;
    for (size_t t = 0; t < p.size(); ++t) {
      log_p[t] = log_left;
      if (t < gates.size()) {
        const double gate = gates[t][i];
        lambda[t] = Sigmoid(gate);
        log_p[t] += LogSigmoid(gate);
        log_left += LogSigmoid(-gate);
      }
      p[t] = Exp(log_p[t]);
    }
  }
};

template <class T>
void Forward(const ExitLossForwardArgs& args) {
  const int64_t N = args.targets_N.size(), width = args.sums.size();
  const int32_t* targets = args.targets_N.data<int32_t>();
  const auto gates = PointersOf<T>(args.gates_N);
  const auto losses = PointersOf<T>(args.losses), lses = PointersOf<T>(args.lses);
  const size_t loops = losses.size();
  const int64_t blocks = (N + kTokenBlock - 1) / kTokenBlock;
  std::vector<double> lines(blocks * width, 0.0);
  ForEachBlock(N, kTokenBlock, 32 * N, [&](int64_t block, int64_t begin, int64_t end) {
    double* sums = lines.data() + block * width;
    Exits exits(loops);
    for (int64_t i = begin; i < end; ++i) {
      if (targets[i] < 0) continue;
      exits.Read(gates, i);
      sums[kCountedSum] += 1;
      for (size_t t = 0; t < loops; ++t) {
        const double p = exits.p[t], lse = lses[t][i];
        sums[kLossSum] += p * losses[t][i];
        sums[kSquaredLseSum] += p * lse * lse;
        sums[kExitEntropySum] -= p * exits.log_p[t];
        sums[kExitProbabilitySums + t] += p;
      }
    }
  });
  double* sums = args.sums.data<double>();
  std::fill(sums, sums + width, 0.0);
  for (int64_t block = 0; block < blocks; ++block) {
    for (int64_t s = 0; s < width; ++s) sums[s] += lines[block * width + s];
  }
}

template <class T>
void Backward(const ExitLossBackwardArgs& args) {
  const int64_t N = args.targets_N.size();
  const int32_t* targets = args.targets_N.data<int32_t>();
  const double* dsums = args.dsums.data<double>();
  const auto gates = PointersOf<T>(args.gates_N), dgates = PointersOf<T>(args.dgates_N);
  const auto losses = PointersOf<T>(args.losses), dlosses = PointersOf<T>(args.dlosses);
  const auto lses = PointersOf<T>(args.lses), dlses = PointersOf<T>(args.dlses);
  const int64_t loops = static_cast<int64_t>(losses.size());
  ForEachBlock(N, kTokenBlock, 32 * N, [&](int64_t, int64_t begin, int64_t end) {
    Exits exits(loops);
    for (int64_t i = begin; i < end; ++i) {
      if (targets[i] < 0) {
        for (const auto* gradients : {&dgates, &dlosses, &dlses}) {
          for (T* gradient : *gradients) gradient[i] = 0;
        }
        continue;
      }
      exits.Read(gates, i);
      double later = 0;  // sum of p_u v_u over u > t
      for (int64_t t = loops - 1; t >= 0; --t) {
        const double p = exits.p[t], lambda = exits.lambda[t], lse = lses[t][i];
        dlosses[t][i] = static_cast<T>(p * dsums[kLossSum]);
        dlses[t][i] = static_cast<T>(2 * p * lse * dsums[kSquaredLseSum]);
        // The derivative of -p log p is -log p - 1; the ones cancel, as the sum of p is 1.
        const double v = dsums[kLossSum] * losses[t][i] + dsums[kSquaredLseSum] * lse * lse -
                         dsums[kExitEntropySum] * exits.log_p[t] + dsums[kExitProbabilitySums + t];
        if (t < loops - 1) dgates[t][i] = static_cast<T>((1 - lambda) * p * v - lambda * later);
        later += p * v;
      }
    }
  });
}

}  // namespace

void ExitLossForward(Stream&, const ExitLossForwardArgs& args) {
  DispatchFloat(args.losses[0].dtype(), [&]<class T>() { Forward<T>(args); });
}

void ExitLossBackward(Stream&, const ExitLossBackwardArgs& args) {
  DispatchFloat(args.losses[0].dtype(), [&]<class T>() { Backward<T>(args); });
}

}  // namespace lt2::cpu
