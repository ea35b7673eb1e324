#include <algorithm>
#include <vector>

#include "kernels/cuda/double_sums.cuh"
#include "kernels/cuda/scratch.h"
#include "kernels/exit_loss.h"
#include "kernels/gpu_limits.h"

namespace lt2::cuda {
namespace {

constexpr int kMostLoops = gpu::kMostExitLoops;  // their pointers fit a launch's arguments
constexpr int64_t kMostBlocks = 1024;

template <class T>
struct Pointers {
  T* of[kMostLoops];

  explicit Pointers(const std::vector<Tensor>& tensors) {
    CHECK_LE(static_cast<int>(tensors.size()), kMostLoops) << "loops, on the GPU";
    for (size_t t = 0; t < tensors.size(); ++t) of[t] = Data<T>(tensors[t]);
  }
};

// One token's way out, loop by loop, in double and in logarithms, so that a gate however sure of
// itself leaves every log p finite. Gates are T; losses and log-sum-exps are float.
__device__ double LogSigmoidF64(double x) { return fmin(x, 0.0) - log1p(exp(-fabs(x))); }

struct Exit {
  double lambda = 1, log_p = 0, log_left = 0;

  template <class T>
  __device__ void Next(const Pointers<T>& gates, int loop, int loops, int64_t token) {
    log_p = log_left;
    lambda = 1;
    if (loop == loops - 1) return;
    const double gate = Get(gates.of[loop], token);
    lambda = 1 / (1 + exp(-gate));
    log_p += LogSigmoidF64(gate);
    log_left += LogSigmoidF64(-gate);
  }
};

// parts [sums, blocks]. What came before a loop is computed again: loops are few.
template <class T>
__global__ void __launch_bounds__(256)
    SumTokens(int64_t N, int loops, Pointers<T> gates, Pointers<float> losses, Pointers<float> lses,
              const int32_t* targets_N, double* parts) {
  const int64_t step = int64_t{gridDim.x} * 256;
  double sums[kExitProbabilitySums] = {};
  for (int loop = 0; loop < loops; ++loop) {
    double sum_p = 0;
    for (int64_t i = int64_t{blockIdx.x} * 256 + threadIdx.x; i < N; i += step) {
      if (targets_N[i] < 0) continue;
      Exit exit;
      for (int before = 0; before <= loop; ++before) exit.Next(gates, before, loops, i);
      const double p = exp(exit.log_p), lse = lses.of[loop][i];
      sums[kLossSum] += p * losses.of[loop][i];
      sums[kSquaredLseSum] += p * lse * lse;
      sums[kCountedSum] += loop == 0;
      sums[kExitEntropySum] -= p * exit.log_p;
      sum_p += p;
    }
    sum_p = BlockSumF64(sum_p);
    if (threadIdx.x == 0) parts[(kExitProbabilitySums + loop) * gridDim.x + blockIdx.x] = sum_p;
  }
#pragma unroll
  for (int s = 0; s < kExitProbabilitySums; ++s) {
    const double sum = BlockSumF64(sums[s]);
    if (threadIdx.x == 0) parts[s * gridDim.x + blockIdx.x] = sum;
  }
}

// A thread takes a token.
template <class T>
__global__ void __launch_bounds__(256)
    Gradients(int64_t N, int loops, Pointers<T> gates, Pointers<float> losses, Pointers<float> lses,
              const int32_t* targets_N, const double* dsums, Pointers<T> dgates,
              Pointers<float> dlosses, Pointers<float> dlses) {
  const int64_t i = int64_t{blockIdx.x} * 256 + threadIdx.x;
  if (i >= N) return;
  const bool counted = targets_N[i] >= 0;
  double later = 0;  // sum of p_u v_u over u > t
  for (int t = loops - 1; t >= 0; --t) {
    Exit exit;
    for (int before = 0; before <= t; ++before) exit.Next(gates, before, loops, i);
    const double p = exp(exit.log_p), lse = lses.of[t][i];
    dlosses.of[t][i] = counted ? static_cast<float>(p * dsums[kLossSum]) : 0;
    dlses.of[t][i] = counted ? static_cast<float>(2 * p * lse * dsums[kSquaredLseSum]) : 0;
    // The derivative of -p log p is -log p - 1; the ones cancel, as the sum of p is 1.
    const double v = dsums[kLossSum] * losses.of[t][i] + dsums[kSquaredLseSum] * lse * lse -
                     dsums[kExitEntropySum] * exit.log_p + dsums[kExitProbabilitySums + t];
    if (t < loops - 1) {
      const double dgate = (1 - exit.lambda) * p * v - exit.lambda * later;
      Put(dgates.of[t], i, counted ? static_cast<float>(dgate) : 0);
    }
    later += p * v;
  }
}

// Of the gates; without any it does not matter.
DType TypeOf(const std::vector<Tensor>& gates) {
  return gates.empty() ? DType::kF32 : gates[0].dtype();
}

}  // namespace

void ExitLossForward(Stream& stream, const ExitLossForwardArgs& args) {
  const int64_t N = args.targets_N.size(), width = args.sums.size();
  const int64_t blocks = std::clamp<int64_t>(Blocks(N, 256), 1, kMostBlocks);
  double* parts = ScratchFor<double>(stream, width * blocks);
  DispatchType("exit_loss", TypeOf(args.gates_N), [&]<class T>() {
    SumTokens<T><<<blocks, 256, 0, Handle(stream)>>>(
        N, static_cast<int>(args.losses.size()), Pointers<T>(args.gates_N),
        Pointers<float>(args.losses), Pointers<float>(args.lses), Data<int32_t>(args.targets_N),
        parts);
  });
  CheckLaunch("exit_loss");
  SumParts<<<width, 256, 0, Handle(stream)>>>(blocks, parts, 1.0, false, Data<double>(args.sums));
  CheckLaunch("exit_loss");
}

void ExitLossBackward(Stream& stream, const ExitLossBackwardArgs& args) {
  const int64_t N = args.targets_N.size();
  if (N == 0) return;
  DispatchType("exit_loss", TypeOf(args.gates_N), [&]<class T>() {
    Gradients<T><<<Blocks(N, 256), 256, 0, Handle(stream)>>>(
        N, static_cast<int>(args.losses.size()), Pointers<T>(args.gates_N),
        Pointers<float>(args.losses), Pointers<float>(args.lses), Data<int32_t>(args.targets_N),
        Data<double>(args.dsums), Pointers<T>(args.dgates_N), Pointers<float>(args.dlosses),
        Pointers<float>(args.dlses));
  });
  CheckLaunch("exit_loss backward");
}

}  // namespace lt2::cuda
