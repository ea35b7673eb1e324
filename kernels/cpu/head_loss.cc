#include "kernels/head_loss.h"

#include <cmath>

#include "kernels/cpu/blas.h"
#include "kernels/cpu/blocks.h"
#include "kernels/cpu/row_softmax.h"

namespace lt2::cpu {
namespace {

constexpr int64_t kRowBlock = 16;  // rows a thread takes at a time

// A token's target, and which row of w that is here, if it is.
struct Target {
  Target(int32_t of_vocabulary, int64_t first_row, int64_t rows)
      : counted(of_vocabulary >= 0), row(of_vocabulary - first_row), here(0 <= row && row < rows) {
    here &= counted;
  }
  bool counted;
  int64_t row;
  bool here;
};

// HeadLossStat of a row.
template <class T>
struct RowStats {
  T most = 0;
  double exp_sum = 0;
  T target_logit = 0;
};

// z [V], a row of logits; with kKeep exp(z - most) replaces them.
template <bool kKeep, class T>
RowStats<T> StatsOfRow(T* z, int64_t V, const Target& target) {
  RowStats<T> stats;
  if (!target.counted) return stats;
  if (target.here) stats.target_logit = z[target.row];
  stats.most = RowMax(z, V);
  stats.exp_sum = RowSumExp<kKeep>(z, V, stats.most);
  return stats;
}

// Loss and log-sum-exp of a row, from stats of the whole vocabulary; with kKeep probabilities
// replace what StatsOfRow left, `scale` times which are exp(z - most).
template <bool kKeep, class T>
void LossOfRow(T* z, int64_t V, const Target& target, const RowStats<T>& stats, double scale,
               T* loss, T* lse) {
  *loss = *lse = 0;
  if (!target.counted) {
    if constexpr (kKeep) std::fill(z, z + V, T(0));
    return;
  }
  *lse = static_cast<T>(stats.most + std::log(stats.exp_sum));
  *loss = static_cast<T>(std::log(stats.exp_sum) + (stats.most - stats.target_logit));
  if constexpr (kKeep) {
    const T factor = static_cast<T>(scale / stats.exp_sum);
#pragma omp simd
    for (int64_t v = 0; v < V; ++v) z[v] *= factor;
  }
}

// The stats of a chunk's rows, each of its own part of the vocabulary first and then of all of it.
template <class T>
class LinkedStats {
 public:
  LinkedStats(const Tensor& stats, int64_t rows)
      : stats_(stats.Flat(0, kHeadLossStats * rows).Reshape({kHeadLossStats, rows})), rows_(rows) {}

  void Put(int64_t row, const RowStats<T>& stats) const {
    At(kOwnMost, row) = At(kMost, row) = stats.most;
    At(kExpSum, row) = static_cast<T>(stats.exp_sum);
    At(kTargetLogit, row) = stats.target_logit;
  }
  void Exchange(RankLink& link) const {
    link.Max(stats_.Rows(kMost, kMost + 1));
    for (int64_t row = 0; row < rows_; ++row) At(kExpSum, row) *= static_cast<T>(Scale(row));
    link.Sum(stats_.Rows(kExpSum, kTargetLogit + 1));
  }
  RowStats<T> Get(int64_t row) const {
    return {At(kMost, row), At(kExpSum, row), At(kTargetLogit, row)};
  }
  double Scale(int64_t row) const { return std::exp(double{At(kOwnMost, row)} - At(kMost, row)); }

 private:
  T& At(HeadLossStat stat, int64_t row) const { return stats_.data<T>()[stat * rows_ + row]; }

  Tensor stats_;
  int64_t rows_;
};

// The gradients of a token's loss and log-sum-exp.
struct TokenGradient {
  double loss = 0, lse = 0;
};

TokenGradient GradientOfToken(const Tensor& dsums, double lse) {
  const double* of = dsums.data<double>();
  return {of[kLossSum], 2 * of[kSquaredLseSum] * lse};
}

template <class T>
TokenGradient GradientOfToken(const HeadLossBackwardArgs& args, int64_t i) {
  if (args.dsums.defined()) return GradientOfToken(args.dsums, args.lse_N.data<T>()[i]);
  const T *dloss = DataOrNull<T>(args.dloss_N), *dlse = DataOrNull<T>(args.dlse_N);
  return {dloss == nullptr ? 0.0 : dloss[i], dlse == nullptr ? 0.0 : dlse[i]};
}

// Logits or probabilities of one row become the gradient of the logits. Never inlined: compilers
// fuse a caller's product into this sum or not, and forward and backward must give the same bits.
template <class T>
[[gnu::noinline]] void GradientOfRow(T* z, int64_t V, const Target& target, T lse,
                                     const TokenGradient& gradient, bool probabilities) {
  if (!target.counted) return std::fill(z, z + V, T(0));
  const T factor = static_cast<T>(gradient.loss + gradient.lse);
  if (probabilities) {
#pragma omp simd
    for (int64_t v = 0; v < V; ++v) z[v] *= factor;
  } else {
#pragma omp simd
    for (int64_t v = 0; v < V; ++v) z[v] = factor * Exp(z[v] - lse);
  }
  if (target.here) z[target.row] -= static_cast<T>(gradient.loss);
}

// From gradients dz [rows, V] of the logits of rows `begin` on.
template <class T>
void AddProducts(const T* dz, int64_t begin, int64_t rows, const Tensor& x_ND, const Tensor& w_VD,
                 const Tensor& dx_ND, bool accumulate_dx, const Tensor& dw_VD) {
  const int64_t V = w_VD.dim(0), D = w_VD.dim(1);
  if (dx_ND.defined()) {
    Gemm<T>(false, false, rows, D, V, 1, dz, V, w_VD.data<T>(), D, accumulate_dx,
            dx_ND.data<T>() + begin * D, D);
  }
  if (dw_VD.defined()) {
    Gemm<T>(true, false, V, D, rows, 1, dz, V, x_ND.data<T>() + begin * D, D, 1, dw_VD.data<T>(),
            D);
  }
}

// fn(r) for each row of a chunk.
template <class Fn>
void ForEachRow(int64_t rows, int64_t V, const Fn& fn) {
  ForEachBlock(rows, kRowBlock, rows * V, [&](int64_t, int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) fn(r);
  });
}

template <class T>
void Forward(const HeadLossForwardArgs& args) {
  const int64_t N = args.x_ND.dim(0), V = args.w_VD.dim(0), D = args.w_VD.dim(1);
  const int32_t* targets = args.targets_N.data<int32_t>();
  const bool keep = args.keep_probabilities, at_once = args.dsums.defined();
  T *loss = args.loss_N.data<T>(), *lse = args.lse_N.data<T>();
  for (int64_t i = 0; i < N; ++i) CHECK_LT(targets[i], args.vocabulary) << "target of token " << i;
  for (int64_t begin = 0; begin < N; begin += args.chunk_rows) {
    const int64_t rows = std::min(args.chunk_rows, N - begin);
    T* z = args.logits.data<T>() + (keep ? begin * V : 0);
    Gemm<T>(false, true, rows, V, D, 1, args.x_ND.data<T>() + begin * D, D, args.w_VD.data<T>(), D,
            0, z, V);
    const auto of_row = [&](int64_t r) { return Target(targets[begin + r], args.first_row, V); };
    const auto take = [&](int64_t r) {
      return keep || at_once ? StatsOfRow<true>(z + r * V, V, of_row(r))
                             : StatsOfRow<false>(z + r * V, V, of_row(r));
    };
    const auto finish = [&](int64_t r, const RowStats<T>& stats, double scale) {
      const int64_t i = begin + r;
      const Target target = of_row(r);
      if (keep || at_once) {
        LossOfRow<true>(z + r * V, V, target, stats, scale, loss + i, lse + i);
      } else {
        LossOfRow<false>(z + r * V, V, target, stats, scale, loss + i, lse + i);
      }
      if (at_once) {
        GradientOfRow(z + r * V, V, target, lse[i], GradientOfToken(args.dsums, lse[i]),
                      /*probabilities=*/true);
      }
    };
    if (args.link == nullptr) {
      ForEachRow(rows, V, [&](int64_t r) { finish(r, take(r), 1); });
    } else {
      const LinkedStats<T> stats(args.stats, rows);
      ForEachRow(rows, V, [&](int64_t r) { stats.Put(r, take(r)); });
      stats.Exchange(*args.link);
      ForEachRow(rows, V, [&](int64_t r) { finish(r, stats.Get(r), stats.Scale(r)); });
    }
    if (at_once) {
      AddProducts(z, begin, rows, args.x_ND, args.w_VD, args.dx_ND, /*accumulate_dx=*/false,
                  args.dw_VD);
    }
  }
  double sums[kHeadLossSums] = {};
  for (int64_t i = 0; i < N; ++i) {
    sums[kLossSum] += loss[i];
    sums[kSquaredLseSum] += static_cast<double>(lse[i]) * lse[i];
    sums[kCountedSum] += targets[i] >= 0;
  }
  std::copy(sums, sums + kHeadLossSums, args.sums.data<double>());
}

template <class T>
void Backward(const HeadLossBackwardArgs& args) {
  const int64_t N = args.x_ND.dim(0), V = args.w_VD.dim(0), D = args.w_VD.dim(1);
  const int32_t* targets = args.targets_N.data<int32_t>();
  const T *w = args.w_VD.data<T>(), *lse = args.lse_N.data<T>();
  const bool kept = args.logits_are_probabilities;
  for (int64_t begin = 0; begin < N; begin += args.chunk_rows) {
    const int64_t rows = std::min(args.chunk_rows, N - begin);
    const T* x = args.x_ND.data<T>() + begin * D;
    T* z = args.logits.data<T>() + (kept ? begin * V : 0);
    if (!kept) Gemm<T>(false, true, rows, V, D, 1, x, D, w, D, 0, z, V);
    ForEachRow(rows, V, [&](int64_t r) {
      const int64_t i = begin + r;
      GradientOfRow(z + r * V, V, Target(targets[i], args.first_row, V), lse[i],
                    GradientOfToken<T>(args, i), kept);
    });
    AddProducts(z, begin, rows, args.x_ND, args.w_VD, args.dx_ND, args.accumulate_dx, args.dw_VD);
  }
}

}  // namespace

void HeadLossForward(Stream&, const HeadLossForwardArgs& args) {
  DispatchFloat(args.x_ND.dtype(), [&]<class T>() { Forward<T>(args); });
}

void HeadLossBackward(Stream&, const HeadLossBackwardArgs& args) {
  DispatchFloat(args.x_ND.dtype(), [&]<class T>() { Backward<T>(args); });
}

}  // namespace lt2::cpu
