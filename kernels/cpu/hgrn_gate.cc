#include "kernels/hgrn_gate.h"

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/simd.h"

namespace lt2::cpu {
namespace {

// log(exp(a) + exp(b)); a may be -infinity.
template <class T>
inline T LogAddExp(T a, T b) {
  const T larger = a > b ? a : b, smaller = a > b ? b : a;
  return larger + Log1pUnit(Exp(smaller - larger));
}

template <class T>
void Forward(const HgrnGateForwardArgs& args) {
  const int64_t width = args.bound_D.size(), size = args.f_ND.size();
  const T *f = args.f_ND.data<T>(), *bound = args.bound_D.data<T>();
  T *g = args.g_ND.data<T>(), *k = args.k_ND.data<T>();
  std::vector<T> logs(2 * width);  // of l, and of 1 - l
  for (int64_t d = 0; d < width; ++d) {
    logs[d] = std::log(bound[d]);
    logs[width + d] = std::log1p(-bound[d]);
  }
  const T *log_l = logs.data(), *log_rest = log_l + width;
  ForEachBlock(size / width, 32, size, [=](int64_t, int64_t begin, int64_t end) {
    for (int64_t n = begin * width; n < end * width; n += width) {
#pragma omp simd
      for (int64_t d = 0; d < width; ++d) {
        const T written = (T(1) - bound[d]) * Sigmoid(-f[n + d]);
        // Near exp(g) = 1 from its distance, else from the sum of the two parts: no digits cancel.
        const T small = written < T(0.5) ? written : T(0.5);
        const T near = Log1pUnit(-small);
        const T far = LogAddExp(log_l[d], log_rest[d] + LogSigmoid(f[n + d]));
        k[n + d] = written;
        g[n + d] = written < T(0.5) ? near : far;
      }
    }
  });
}

template <class T>
void Backward(const HgrnGateBackwardArgs& args) {
  const int64_t width = args.bound_D.size(), size = args.f_ND.size(), rows = size / width;
  const T *f = args.f_ND.data<T>(), *bound = args.bound_D.data<T>();
  const T *dg = DataOrNull<T>(args.dg_ND), *dk = DataOrNull<T>(args.dk_ND);
  T *df = DataOrNull<T>(args.df_ND), *dbound = DataOrNull<T>(args.dbound_D);
  const bool accumulate = args.accumulate_df;
  const RowSums<T> sums(rows, width);
  ForEachBlock(rows, sums.Block(rows), size, [=](int64_t block, int64_t begin, int64_t end) {
    T* line = sums.Line(block);
    for (int64_t n = begin * width; n < end * width; n += width) {
#pragma omp simd
      for (int64_t d = 0; d < width; ++d) {
        const T open = Sigmoid(f[n + d]), closed = Sigmoid(-f[n + d]);
        const T rest = T(1) - bound[d], decay = bound[d] + rest * open;
        const T dg_i = dg != nullptr ? dg[n + d] : T(0), dk_i = dk != nullptr ? dk[n + d] : T(0);
        // Where l = 0 and σ(f) is almost nothing their quotient is still 1.
        const T share = decay > T(0) ? rest * open / decay : T(1);
        const T df_i = closed * (dg_i * share - dk_i * rest * open);
        if (df != nullptr) df[n + d] = (accumulate ? df[n + d] : T(0)) + df_i;
        line[d] += closed * ((decay > T(0) ? dg_i / decay : T(0)) - dk_i);
      }
    }
  });
  if (dbound == nullptr) return;
  if (!args.accumulate_dbound) args.dbound_D.Zero();
  sums.AddTo(dbound, 0, width);
}

// A column's softmax over layers, into shares [layers].
template <class T>
void Shares(const T* table_LD, int64_t layers, int64_t width, int64_t d, T* shares) {
  T most = table_LD[d], sum = 0;
  for (int64_t m = 1; m < layers; ++m) most = std::max(most, table_LD[m * width + d]);
  for (int64_t m = 0; m < layers; ++m) sum += shares[m] = Exp(table_LD[m * width + d] - most);
  for (int64_t m = 0; m < layers; ++m) shares[m] /= sum;
}

}  // namespace

void HgrnGateForward(Stream&, const HgrnGateForwardArgs& args) {
  DispatchFloat(args.f_ND.dtype(), [&]<class T>() { Forward<T>(args); });
}

void HgrnGateBackward(Stream&, const HgrnGateBackwardArgs& args) {
  DispatchFloat(args.f_ND.dtype(), [&]<class T>() { Backward<T>(args); });
}

void LowerBoundForward(Stream&, const LowerBoundForwardArgs& args) {
  const int64_t layers = args.table_LD.dim(0), width = args.table_LD.dim(1);
  DispatchFloat(args.table_LD.dtype(), [&]<class T>() {
    std::vector<T> shares(layers);
    for (int64_t d = 0; d < width; ++d) {
      Shares(args.table_LD.data<T>(), layers, width, d, shares.data());
      T bound = 0;
      for (int64_t m = 1; m <= args.layer; ++m) bound += shares[m];
      args.bound_D.data<T>()[d] = bound;
    }
  });
}

void LowerBoundBackward(Stream&, const LowerBoundBackwardArgs& args) {
  const int64_t layers = args.table_LD.dim(0), width = args.table_LD.dim(1);
  DispatchFloat(args.table_LD.dtype(), [&]<class T>() {
    std::vector<T> shares(layers);
    for (int64_t d = 0; d < width; ++d) {
      Shares(args.table_LD.data<T>(), layers, width, d, shares.data());
      const T bound = args.bound_D.data<T>()[d], dbound = args.dbound_D.data<T>()[d];
      for (int64_t m = 0; m < layers; ++m) {
        const T inside = 1 <= m && m <= args.layer ? T(1) : T(0);
        args.dtable_LD.data<T>()[m * width + d] += shares[m] * (inside - bound) * dbound;
      }
    }
  });
}

}  // namespace lt2::cpu
