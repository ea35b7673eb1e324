#include "kernels/time_step.h"

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/simd.h"

namespace lt2::cpu {
namespace {

template <class T>
std::vector<T> Rates(const Tensor& A_log) {
  std::vector<T> rates(A_log.size());
  for (size_t h = 0; h < rates.size(); ++h) rates[h] = -std::exp(A_log.data<T>()[h]);
  return rates;
}

template <class T>
void Forward(const TimeStepForwardArgs& args) {
  const int64_t heads = args.A_log.size(), size = args.a.size();
  const std::vector<T> rates = Rates<T>(args.A_log);
  const T *a = args.a.data<T>(), *bias = args.dt_bias.data<T>(), *rate = rates.data();
  T *dt = args.dt.data<T>(), *g = args.g.data<T>();
  ForEachBlock(size / heads, 64, size, [=](int64_t, int64_t begin, int64_t end) {
    for (int64_t n = begin * heads; n < end * heads; n += heads) {
#pragma omp simd
      for (int64_t h = 0; h < heads; ++h) {
        const T value = SoftPlus(a[n + h] + bias[h]);
        dt[n + h] = value;
        g[n + h] = rate[h] * value;
      }
    }
  });
}

template <class T>
void Backward(const TimeStepBackwardArgs& args) {
  const int64_t heads = args.A_log.size(), size = args.a.size(), tokens = size / heads;
  const std::vector<T> rates = Rates<T>(args.A_log);
  const T *a = args.a.data<T>(), *bias = args.dt_bias.data<T>(), *rate = rates.data();
  const T *g = args.g.data<T>(), *ddt = DataOrNull<T>(args.ddt), *dg = DataOrNull<T>(args.dg);
  T* da = DataOrNull<T>(args.da);
  const bool accumulate = args.accumulate_da;
  const RowSums<T> sums(tokens, 2 * heads);  // of e, then of dg g
  ForEachBlock(tokens, sums.Block(tokens), size, [=](int64_t block, int64_t begin, int64_t end) {
    T *sum_e = sums.Line(block), *sum_dgg = sum_e + heads;
    for (int64_t n = begin * heads; n < end * heads; n += heads) {
#pragma omp simd
      for (int64_t h = 0; h < heads; ++h) {
        const T z = a[n + h] + bias[h], s = Sigmoid(z);
        const T ddt_h = ddt != nullptr ? ddt[n + h] : T(0), dg_h = dg != nullptr ? dg[n + h] : T(0);
        const T e = (ddt_h + rate[h] * dg_h) * (z > T(20) ? T(1) : s);
        sum_e[h] += e;
        sum_dgg[h] += dg_h * g[n + h];
        if (da != nullptr) da[n + h] = (accumulate ? da[n + h] : T(0)) + e;
      }
    }
  });
  sums.AddTo(args.ddt_bias.data<T>(), 0, heads);
  sums.AddTo(args.dA_log.data<T>(), heads, heads);
}

}  // namespace

void TimeStepForward(Stream&, const TimeStepForwardArgs& args) {
  DispatchFloat(args.a.dtype(), [&]<class T>() { Forward<T>(args); });
}

void TimeStepBackward(Stream&, const TimeStepBackwardArgs& args) {
  DispatchFloat(args.a.dtype(), [&]<class T>() { Backward<T>(args); });
}

}  // namespace lt2::cpu
