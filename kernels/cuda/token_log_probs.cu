#include "kernels/cuda/row_softmax.cuh"
#include "kernels/token_log_probs.h"

namespace lt2::cuda {
namespace {

constexpr int kThreads = 256;  // a block takes a row

// The least of the threads' numbers.
__device__ int BlockLeast(int x) {
  __shared__ int of_thread[kThreads];
  of_thread[threadIdx.x] = x;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) {
      of_thread[threadIdx.x] = min(of_thread[threadIdx.x], of_thread[threadIdx.x + half]);
    }
  }
  __syncthreads();
  return of_thread[0];
}

// The first of the thread's elements that beats those before it, and the sum of exponentials.
struct Seen {
  SumExp sum;
  float best = -INFINITY;
  int at = 0x7fffffff;

  __device__ void See(float z, int64_t v) {
    if (z <= best) return;
    best = z;
    at = static_cast<int>(v);
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    ScoreRows(int64_t V, bool eights, const T* z_NV, const int32_t* targets_N, float* log_probs_N,
              int32_t* argmax_N) {
  const T* z = z_NV + blockIdx.x * V;
  Seen own;
  ForEachOf<kThreads>(
      z, V, eights,
      [&](int64_t v, const Eight<T>& of) {
        Add<T>(own.sum, of.value);
#pragma unroll
        for (int i = 0; i < 8; ++i) own.See(of.value[i], v + i);
      },
      [&](int64_t v, float value) {
        Add<T>(own.sum, {value});
        own.See(value, v);
      });
  const SumExp all = BlockMerge<T, kThreads>(own.sum);
  if (argmax_N != nullptr) {
    const int first = BlockLeast(own.best == all.most ? own.at : 0x7fffffff);
    if (threadIdx.x == 0) argmax_N[blockIdx.x] = first;
  }
  if (log_probs_N == nullptr || threadIdx.x > 0) return;
  const int target = targets_N[blockIdx.x];
  if (target >= V) __trap();
  log_probs_N[blockIdx.x] = target < 0 ? 0 : Get(z, target) - all.most - logf(all.sum);
}

template <class T>
void Run(const Stream& stream, const TokenLogProbsArgs& args) {
  const int64_t N = args.logits_NV.dim(0), V = args.logits_NV.dim(1);
  if (N == 0) return;
  ScoreRows<<<N, kThreads, 0, Handle(stream)>>>(
      V, InEights(args.logits_NV), Data<T>(args.logits_NV), DataOrNull<int32_t>(args.targets_N),
      DataOrNull<float>(args.log_probs_N), DataOrNull<int32_t>(args.argmax_N));
  CheckLaunch("token_log_probs");
}

}  // namespace

void TokenLogProbs(Stream& stream, const TokenLogProbsArgs& args) {
  DispatchType("token_log_probs", args.logits_NV.dtype(), [&]<class T>() { Run<T>(stream, args); });
}

}  // namespace lt2::cuda
