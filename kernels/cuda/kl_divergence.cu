#include "kernels/cuda/row_softmax.cuh"
#include "kernels/kl_divergence.h"

namespace lt2::cuda {
namespace {

constexpr int kThreads = 256;  // a block takes a row

// Of a part of a row, in one pass: sums of exponentials of s and t (over τ), and
// sum exp(t - most t) (t - s).
struct Part {
  SumExp s, t;
  float gap = 0;
};

template <class T, int kCount>
__device__ void Add(Part& part, const float (&s)[kCount], const float (&t)[kCount]) {
  Add<T>(part.s, s);
  float most = part.t.most;
#pragma unroll
  for (int i = 0; i < kCount; ++i) most = fmaxf(most, t[i]);
  const float shrink = part.t.most == most ? 1 : ExpFor<T>(part.t.most - most);
  part.t = {most, part.t.sum * shrink};
  part.gap *= shrink;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float e = ExpFor<T>(t[i] - most);
    part.t.sum += e;
    part.gap += e * (t[i] - s[i]);
  }
}

// KL = sum p (t - s) - lse_t + lse_s
template <class T>
__global__ void __launch_bounds__(kThreads)
    KlOfRows(int64_t V, bool eights, float inverse, const T* student_NV, const T* teacher_NV,
             float* lse_N2, float* kl_N) {
  const T *s = student_NV + blockIdx.x * V, *t = teacher_NV + blockIdx.x * V;
  Part own;
  ForEachOf<kThreads>(
      s, V, eights,
      [&](int64_t v, Eight<T> of_s) {
        Eight<T> of_t(t + v);
#pragma unroll
        for (int i = 0; i < 8; ++i) of_s.value[i] *= inverse, of_t.value[i] *= inverse;
        Add<T>(own, of_s.value, of_t.value);
      },
      [&](int64_t v, float s_v) {
        const float of_s[1] = {s_v * inverse}, of_t[1] = {Get(t, v) * inverse};
        Add<T>(own, of_s, of_t);
      });
  const SumExp all_s = BlockMerge<T, kThreads>(own.s), all_t = BlockMerge<T, kThreads>(own.t);
  const float weight = own.t.most == all_t.most ? 1 : ExpFor<T>(own.t.most - all_t.most);
  const float gap = BlockSum<kThreads>(own.gap * weight);
  if (threadIdx.x > 0) return;
  const double log_s = log(double{all_s.sum}), log_t = log(double{all_t.sum});
  lse_N2[2 * blockIdx.x] = static_cast<float>(all_s.most + log_s);
  lse_N2[2 * blockIdx.x + 1] = static_cast<float>(all_t.most + log_t);
  kl_N[blockIdx.x] = static_cast<float>(double{gap} / all_t.sum + (log_s - log_t) +
                                        (double{all_s.most} - all_t.most));
}

constexpr int kSumThreads = 512;
__global__ void __launch_bounds__(kSumThreads)
    SumRows(int64_t N, double factor, const float* kl_N, double* loss) {
  __shared__ double of_thread[kSumThreads];
  double own = 0;
  for (int64_t i = threadIdx.x; i < N; i += kSumThreads) own += kl_N[i];
  of_thread[threadIdx.x] = own;
  for (int half = kSumThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) of_thread[threadIdx.x] += of_thread[threadIdx.x + half];
  }
  if (threadIdx.x == 0) *loss = factor * of_thread[0];
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    GradientOfRows(int64_t V, bool eights, float inverse, double unit, const double* dloss,
                   const T* student_NV, const T* teacher_NV, const float* lse_N2, T* ds_NV,
                   bool add) {
  const T *s = student_NV + blockIdx.x * V, *t = teacher_NV + blockIdx.x * V;
  T* ds = ds_NV + blockIdx.x * V;
  const float factor = static_cast<float>(*dloss * unit);
  const float lse_s = lse_N2[2 * blockIdx.x], lse_t = lse_N2[2 * blockIdx.x + 1];
  const auto gradient = [=](float s_v, float t_v) {
    return factor * (ExpFor<T>(s_v * inverse - lse_s) - ExpFor<T>(t_v * inverse - lse_t));
  };
  ForEachOf<kThreads>(
      s, V, eights,
      [&](int64_t v, Eight<T> of_s) {
        const Eight<T> of_t(t + v);
#pragma unroll
        for (int i = 0; i < 8; ++i) of_s.value[i] = gradient(of_s.value[i], of_t.value[i]);
        if (add) {
          const Eight<T> before(ds + v);
#pragma unroll
          for (int i = 0; i < 8; ++i) of_s.value[i] += before.value[i];
        }
        of_s.Store(ds + v);
      },
      [&](int64_t v, float s_v) { PutOrAdd(ds, v, gradient(s_v, Get(t, v)), add); });
}

template <class T>
void Forward(const Stream& stream, const KlDivergenceForwardArgs& args) {
  const int64_t N = args.student_NV.dim(0), V = args.student_NV.dim(1);
  const bool eights = InEights(args.student_NV) && InEights(args.teacher_NV);
  float* kl = Data<float>(args.kl_N);
  if (N > 0) {
    KlOfRows<<<N, kThreads, 0, Handle(stream)>>>(
        V, eights, static_cast<float>(1 / args.temperature), Data<T>(args.student_NV),
        Data<T>(args.teacher_NV), Data<float>(args.lse_N2), kl);
    CheckLaunch("kl_divergence");
  }
  SumRows<<<1, kSumThreads, 0, Handle(stream)>>>(
      N, args.weight * args.temperature * args.temperature, kl, Data<double>(args.loss));
  CheckLaunch("kl_divergence");
}

template <class T>
void Backward(const Stream& stream, const KlDivergenceBackwardArgs& args) {
  const int64_t N = args.student_NV.dim(0), V = args.student_NV.dim(1);
  if (!args.dstudent_NV.defined() || N == 0) return;
  const bool eights =
      InEights(args.student_NV) && InEights(args.teacher_NV) && InEights(args.dstudent_NV);
  GradientOfRows<<<N, kThreads, 0, Handle(stream)>>>(
      V, eights, static_cast<float>(1 / args.temperature), args.weight * args.temperature,
      Data<double>(args.dloss), Data<T>(args.student_NV), Data<T>(args.teacher_NV),
      Data<float>(args.lse_N2), Data<T>(args.dstudent_NV), args.accumulate_dstudent);
  CheckLaunch("kl_divergence backward");
}

}  // namespace

void KlDivergenceForward(Stream& stream, const KlDivergenceForwardArgs& args) {
  DispatchType("kl_divergence", args.student_NV.dtype(),
               [&]<class T>() { Forward<T>(stream, args); });
}

void KlDivergenceBackward(Stream& stream, const KlDivergenceBackwardArgs& args) {
  DispatchType("kl_divergence", args.student_NV.dtype(),
               [&]<class T>() { Backward<T>(stream, args); });
}

}  // namespace lt2::cuda
