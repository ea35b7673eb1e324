#include "kernels/head_loss.h"

#include <cmath>

#include "kernels/cpu/blas.h"
#include "kernels/cpu/blocks.h"
#include "kernels/cpu/row_softmax.h"

namespace lt2::cpu {
namespace {

constexpr int64_t kRowBlock = 16;  // rows a thread takes at a time

// z [rows, V]: loss and log-sum-exp of each row; with kKeep probabilities replace the logits.
template <bool kKeep, class T>
void LossOfRow(T* z, int64_t V, int32_t target, T* loss, T* lse) {
  *loss = *lse = 0;
  if (target < 0) {
    if constexpr (kKeep) std::fill(z, z + V, T(0));
    return;
  }
  const T target_logit = z[target], largest = RowMax(z, V);
  const double sum = RowSumExp<kKeep>(z, V, largest);
  *lse = static_cast<T>(largest + std::log(sum));
  *loss = static_cast<T>(std::log(sum) + (largest - target_logit));
  if constexpr (kKeep) {
    const T inverse = static_cast<T>(1 / sum);
#pragma omp simd
    for (int64_t v = 0; v < V; ++v) z[v] *= inverse;
  }
}

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
[[gnu::noinline]] void GradientOfRow(T* z, int64_t V, int32_t target, T lse,
                                     const TokenGradient& gradient, bool probabilities) {
  if (target < 0) return std::fill(z, z + V, T(0));
  const T factor = static_cast<T>(gradient.loss + gradient.lse);
  if (probabilities) {
#pragma omp simd
    for (int64_t v = 0; v < V; ++v) z[v] *= factor;
  } else {
#pragma omp simd
    for (int64_t v = 0; v < V; ++v) z[v] = factor * Exp(z[v] - lse);
  }
  z[target] -= static_cast<T>(gradient.loss);
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

template <class T>
void Forward(const HeadLossForwardArgs& args) {
  const int64_t N = args.x_ND.dim(0), V = args.w_VD.dim(0), D = args.w_VD.dim(1);
  const int32_t* targets = args.targets_N.data<int32_t>();
  const bool keep = args.keep_probabilities, at_once = args.dsums.defined();
  T *loss = args.loss_N.data<T>(), *lse = args.lse_N.data<T>();
  for (int64_t i = 0; i < N; ++i) CHECK_LT(targets[i], V) << "target of token " << i;
  for (int64_t begin = 0; begin < N; begin += args.chunk_rows) {
    const int64_t rows = std::min(args.chunk_rows, N - begin);
    T* z = args.logits.data<T>() + (keep ? begin * V : 0);
    Gemm<T>(false, true, rows, V, D, 1, args.x_ND.data<T>() + begin * D, D, args.w_VD.data<T>(), D,
            0, z, V);
    ForEachBlock(rows, kRowBlock, rows * V, [&](int64_t, int64_t first, int64_t last) {
      for (int64_t r = first; r < last; ++r) {
        const int64_t i = begin + r;
        if (keep || at_once) {
          LossOfRow<true>(z + r * V, V, targets[i], loss + i, lse + i);
        } else {
          LossOfRow<false>(z + r * V, V, targets[i], loss + i, lse + i);
        }
        if (at_once) {
          GradientOfRow(z + r * V, V, targets[i], lse[i], GradientOfToken(args.dsums, lse[i]),
                        /*probabilities=*/true);
        }
      }
    });
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
    ForEachBlock(rows, kRowBlock, rows * V, [&](int64_t, int64_t first, int64_t last) {
      for (int64_t r = first; r < last; ++r) {
        const int64_t i = begin + r;
        GradientOfRow(z + r * V, V, targets[i], lse[i], GradientOfToken<T>(args, i), kept);
      }
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
