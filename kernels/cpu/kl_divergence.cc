#include "kernels/kl_divergence.h"

#include <cmath>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/row_softmax.h"

namespace lt2::cpu {
namespace {

constexpr int64_t kRowBlock = 8;  // rows a thread takes at a time

// KL of one row: sum p (log p - log q), with the differences of logits to their maxima.
template <class T>
double RowKl(const T* s, const T* t, int64_t n, T inverse, T* lse) {
  const T top_s = RowMax(s, n), top_t = RowMax(t, n);
  const double sum_s = std::log(RowSumExp<false>(s, n, top_s, inverse));
  const double sum_t = std::log(RowSumExp<false>(t, n, top_t, inverse));
  lse[0] = static_cast<T>(static_cast<double>(top_s) * inverse + sum_s);
  lse[1] = static_cast<T>(static_cast<double>(top_t) * inverse + sum_t);
  const T log_s = static_cast<T>(sum_s), log_t = static_cast<T>(sum_t);
  double kl = 0;
  constexpr int64_t kBlock = 2048;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = std::min(n, begin + kBlock);
    T sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t v = begin; v < end; ++v) {
      const T log_p = (t[v] - top_t) * inverse - log_t, log_q = (s[v] - top_s) * inverse - log_s;
      sum += Exp(log_p) * (log_p - log_q);
    }
    kl += sum;
  }
  return kl;
}

template <class T>
void Forward(const KlDivergenceForwardArgs& args) {
  const int64_t N = args.student_NV.dim(0), V = args.student_NV.dim(1);
  const T *s = args.student_NV.data<T>(), *t = args.teacher_NV.data<T>();
  const T inverse = static_cast<T>(1 / args.temperature);
  T *lse = args.lse_N2.data<T>(), *kl = args.kl_N.data<T>();
  ForEachBlock(N, kRowBlock, N * V, [=](int64_t, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      kl[i] = static_cast<T>(RowKl(s + i * V, t + i * V, V, inverse, lse + 2 * i));
    }
  });
  double sum = 0;
  for (int64_t i = 0; i < N; ++i) sum += kl[i];
  args.loss.data<double>()[0] = args.weight * args.temperature * args.temperature * sum;
}

template <class T>
void Backward(const KlDivergenceBackwardArgs& args) {
  if (!args.dstudent_NV.defined()) return;
  const int64_t N = args.student_NV.dim(0), V = args.student_NV.dim(1);
  const T *s = args.student_NV.data<T>(), *t = args.teacher_NV.data<T>();
  const T* lse = args.lse_N2.data<T>();
  const T inverse = static_cast<T>(1 / args.temperature);
  const T factor = static_cast<T>(args.dloss.data<double>()[0] * args.weight * args.temperature);
  T* ds = args.dstudent_NV.data<T>();
  const bool accumulate = args.accumulate_dstudent;
  ForEachBlock(N, kRowBlock, N * V, [=](int64_t, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const T lse_s = lse[2 * i], lse_t = lse[2 * i + 1];
      const T *s_i = s + i * V, *t_i = t + i * V;
      T* ds_i = ds + i * V;
      if (!accumulate) std::fill(ds_i, ds_i + V, T(0));
#pragma omp simd
      for (int64_t v = 0; v < V; ++v) {
        ds_i[v] += factor * (Exp(s_i[v] * inverse - lse_s) - Exp(t_i[v] * inverse - lse_t));
      }
    }
  });
}

}  // namespace

void KlDivergenceForward(Stream&, const KlDivergenceForwardArgs& args) {
  DispatchFloat(args.student_NV.dtype(), [&]<class T>() { Forward<T>(args); });
}

void KlDivergenceBackward(Stream&, const KlDivergenceBackwardArgs& args) {
  DispatchFloat(args.student_NV.dtype(), [&]<class T>() { Backward<T>(args); });
}

}  // namespace lt2::cpu
