#include <algorithm>

#include "kernels/cuda/row_softmax.cuh"
#include "kernels/gemm.h"
#include "kernels/head_loss.h"

namespace lt2::cuda {
namespace {

constexpr int kThreads = 256;  // a block takes a row

template <class T>
__device__ void ZeroRow(T* z, int64_t V) {
  for (int64_t v = threadIdx.x; v < V; v += kThreads) Put(z, v, 0);
}

// Of the sums, or of each token: where dsums is null, and null again is 0.
struct ResultGradients {
  const double* dsums = nullptr;
  const float *dloss_N = nullptr, *dlse_N = nullptr;
  float every_dlse = 0;  // instead of dlse_N

  ResultGradients From(int64_t row) const {
    return {dsums, dloss_N ? dloss_N + row : nullptr, dlse_N ? dlse_N + row : nullptr, every_dlse};
  }
  __device__ float of_loss(int64_t i) const {
    if (dsums != nullptr) return static_cast<float>(dsums[kLossSum]);
    return dloss_N != nullptr ? dloss_N[i] : 0;
  }
  __device__ float of_lse(int64_t i, float lse) const {
    if (dsums != nullptr) return static_cast<float>(2 * dsums[kSquaredLseSum]) * lse;
    return dlse_N != nullptr ? dlse_N[i] : every_dlse;
  }
};

// The gradient of a logit, from the logit or its probability.
template <class T>
struct LogitGradient {
  float lse, of_loss, of_lse;
  int target;
  bool probabilities;

  __device__ float operator()(int64_t v, float value) const {
    const float p = probabilities ? value : ExpFor<T>(value - lse);
    return of_loss * (v == target ? p - 1 : p) + of_lse * p;
  }
};

// z_v becomes with(v, z_v): z [V], a row.
template <class T, class With>
__device__ void ReplaceRow(T* z, int64_t V, bool eights, const With& with) {
  ForEachOf<kThreads>(
      z, V, eights,
      [&](int64_t v, Eight<T> of) {
#pragma unroll
        for (int i = 0; i < 8; ++i) of.value[i] = with(v + i, of.value[i]);
        of.Store(z + v);
      },
      [&](int64_t v, float value) { Put(z, v, with(v, value)); });
}

enum class Replace { kNothing, kByProbabilities, kByGradients };

// z [rows, V]: loss and log-sum-exp of each row, and what replaces the logits.
template <class T, Replace kReplace>
__global__ void __launch_bounds__(kThreads)
    LossOfRows(int64_t V, bool eights, T* z_NV, const int32_t* targets_N, float* loss_N,
               float* lse_N, const double* dsums) {
  T* z = z_NV + blockIdx.x * V;
  const int target = targets_N[blockIdx.x];
  if (target >= V) __trap();
  if (target < 0) {
    if (threadIdx.x == 0) loss_N[blockIdx.x] = lse_N[blockIdx.x] = 0;
    if constexpr (kReplace != Replace::kNothing) ZeroRow(z, V);
    return;
  }
  const float target_logit = Get(z, target);  // before anybody writes
  SumExp own;
  ForEachOf<kThreads>(
      z, V, eights, [&](int64_t, const Eight<T>& of) { Add<T>(own, of.value); },
      [&](int64_t, float value) { Add<T>(own, {value}); });
  const SumExp all = BlockMerge<T, kThreads>(own);
  const float lse = all.most + logf(all.sum);
  if (threadIdx.x == 0) {
    lse_N[blockIdx.x] = lse;
    loss_N[blockIdx.x] = logf(all.sum) + (all.most - target_logit);
  }
  if constexpr (kReplace == Replace::kByProbabilities) {
    const float inverse = 1 / all.sum;
    ReplaceRow(z, V, eights,
               [=](int64_t, float value) { return ExpFor<T>(value - all.most) * inverse; });
  }
  if constexpr (kReplace == Replace::kByGradients) {
    const ResultGradients results{.dsums = dsums};
    ReplaceRow(z, V, eights,
               LogitGradient<T>{.lse = lse,
                                .of_loss = results.of_loss(0),
                                .of_lse = results.of_lse(0, lse),
                                .target = target,
                                .probabilities = false});
  }
}

// HeadLossStat of a chunk's rows, 0 where not counted: [kHeadLossStats, rows].
struct RowStats {
  float* data;
  int64_t rows;
  __device__ float& At(HeadLossStat stat, int64_t row) const { return data[stat * rows + row]; }
};

// Of the part of the vocabulary that is here.
template <class T>
__global__ void __launch_bounds__(kThreads)
    StatsOfRows(int64_t V, int64_t first_row, int64_t vocabulary, bool eights, const T* z_NV,
                const int32_t* targets_N, RowStats stats) {
  const int64_t row = blockIdx.x, target = targets_N[row], here = target - first_row;
  const T* z = z_NV + row * V;
  if (target >= vocabulary) __trap();
  SumExp own;
  if (target >= 0) {
    ForEachOf<kThreads>(
        z, V, eights, [&](int64_t, const Eight<T>& of) { Add<T>(own, of.value); },
        [&](int64_t, float value) { Add<T>(own, {value}); });
  }
  const SumExp all = BlockMerge<T, kThreads>(own);
  if (threadIdx.x > 0) return;
  const bool counted = target >= 0;
  stats.At(kOwnMost, row) = stats.At(kMost, row) = counted ? all.most : 0;
  stats.At(kExpSum, row) = counted ? all.sum : 0;
  stats.At(kTargetLogit, row) = counted && 0 <= here && here < V ? Get(z, here) : 0;
}

// Logits or probabilities z [rows, V] become the gradients of the logits.
template <class T>
__global__ void __launch_bounds__(kThreads)
    GradientOfRows(int64_t V, int64_t first_row, bool eights, bool probabilities, T* z_NV,
                   const int32_t* targets_N, const float* lse_N, ResultGradients results) {
  T* z = z_NV + blockIdx.x * V;
  const int target = targets_N[blockIdx.x];
  if (target < 0) return ZeroRow(z, V);
  const float lse = lse_N[blockIdx.x];
  const float of_loss = results.of_loss(blockIdx.x), of_lse = results.of_lse(blockIdx.x, lse);
  ReplaceRow(z, V, eights,
             LogitGradient<T>{.lse = lse,
                              .of_loss = of_loss,
                              .of_lse = of_lse,
                              .target = target - static_cast<int>(first_row),
                              .probabilities = probabilities});
}

// One block: sums of losses, of lse² and of tokens that count.
constexpr int kSumThreads = 512;
__global__ void __launch_bounds__(kSumThreads)
    SumRows(int64_t N, const int32_t* targets_N, const float* loss_N, const float* lse_N,
            double* sums) {
  __shared__ double of_thread[kHeadLossSums][kSumThreads];
  double own[kHeadLossSums] = {};
  for (int64_t i = threadIdx.x; i < N; i += kSumThreads) {
    own[kLossSum] += loss_N[i];
    own[kSquaredLseSum] += double{lse_N[i]} * lse_N[i];
    own[kCountedSum] += targets_N[i] >= 0;
  }
#pragma unroll
  for (int s = 0; s < kHeadLossSums; ++s) of_thread[s][threadIdx.x] = own[s];
  for (int half = kSumThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x >= half) continue;
#pragma unroll
    for (int s = 0; s < kHeadLossSums; ++s) {
      of_thread[s][threadIdx.x] += of_thread[s][threadIdx.x + half];
    }
  }
  if (threadIdx.x > 0) return;
#pragma unroll
  for (int s = 0; s < kHeadLossSums; ++s) sums[s] = of_thread[s][0];
}

// The rows of tokens from `begin` on where ranks share the vocabulary: LossOfRows with an exchange
// between the stats and what replaces the logits.
template <class T>
void LinkedLossOfRows(const Stream& stream, const HeadLossForwardArgs& args, int64_t begin,
                      const Tensor& z) {
  const int64_t rows = z.dim(0), V = z.dim(1);
  const auto blocks = static_cast<unsigned>(rows);
  const int32_t* targets = Data<int32_t>(args.targets_N) + begin;
  float *loss = Data<float>(args.loss_N) + begin, *lse = Data<float>(args.lse_N) + begin;
  const Tensor stats_SN = args.stats.Flat(0, kHeadLossStats * rows).Reshape({kHeadLossStats, rows});
  const RowStats stats{Data<float>(stats_SN), rows};
  StatsOfRows<T><<<blocks, kThreads, 0, Handle(stream)>>>(V, args.first_row, args.vocabulary,
                                                          InEights(z), Data<T>(z), targets, stats);
  CheckLaunch("head_loss");
  args.link->Max(stats_SN.Rows(kMost, kMost + 1));
  ForEach(stream, "head_loss", rows, [=] __device__(int64_t row) {
    stats.At(kExpSum, row) *= expf(stats.At(kOwnMost, row) - stats.At(kMost, row));
  });
  args.link->Sum(stats_SN.Rows(kExpSum, kTargetLogit + 1));
  ForEach(stream, "head_loss", rows, [=] __device__(int64_t row) {
    const bool counted = targets[row] >= 0;
    const float most = stats.At(kMost, row), log_sum = logf(stats.At(kExpSum, row));
    lse[row] = counted ? most + log_sum : 0;
    loss[row] = counted ? log_sum + (most - stats.At(kTargetLogit, row)) : 0;
  });
  const bool at_once = args.dsums.defined();
  if (!at_once && !args.keep_probabilities) return;
  // Probabilities are the gradients of the log-sum-exp.
  const ResultGradients results{.dsums = DataOrNull<double>(args.dsums), .every_dlse = 1};
  GradientOfRows<T><<<blocks, kThreads, 0, Handle(stream)>>>(
      V, args.first_row, InEights(z), /*probabilities=*/false, Data<T>(z), targets, lse, results);
  CheckLaunch("head_loss");
}

// From gradients dz of the logits of x's rows.
void AddProducts(Stream& stream, const Tensor& dz, const Tensor& x, const Tensor& w_VD,
                 const Tensor& dx, bool accumulate_dx, const Tensor& dw_VD) {
  if (dx.defined()) {
    cuda::Gemm(stream, {.a = dz, .b = w_VD, .c = dx, .accumulate = accumulate_dx});
  }
  if (dw_VD.defined()) {
    cuda::Gemm(stream, {.a = dz, .b = x, .c = dw_VD, .transpose_a = true, .accumulate = true});
  }
}

Tensor RowsOrNone(const Tensor& x, int64_t begin, int64_t rows) {
  return x.defined() ? x.Rows(begin, begin + rows) : Tensor();
}

template <class T>
void Forward(Stream& stream, const HeadLossForwardArgs& args) {
  const int64_t N = args.x_ND.dim(0), V = args.w_VD.dim(0);
  const int32_t* targets = Data<int32_t>(args.targets_N);
  float *loss = Data<float>(args.loss_N), *lse = Data<float>(args.lse_N);
  const double* dsums = DataOrNull<double>(args.dsums);
  const auto of_rows = args.keep_probabilities ? LossOfRows<T, Replace::kByProbabilities>
                       : dsums != nullptr      ? LossOfRows<T, Replace::kByGradients>
                                               : LossOfRows<T, Replace::kNothing>;
  for (int64_t begin = 0; begin < N; begin += args.chunk_rows) {
    const int64_t rows = std::min(args.chunk_rows, N - begin);
    const int64_t at = args.keep_probabilities ? begin : 0;
    const Tensor x = args.x_ND.Rows(begin, begin + rows), z = args.logits.Rows(at, at + rows);
    cuda::Gemm(stream, {.a = x, .b = args.w_VD, .c = z, .transpose_b = true});
    if (args.link != nullptr) {
      LinkedLossOfRows<T>(stream, args, begin, z);
    } else {
      of_rows<<<rows, kThreads, 0, Handle(stream)>>>(V, InEights(z), Data<T>(z), targets + begin,
                                                     loss + begin, lse + begin, dsums);
      CheckLaunch("head_loss");
    }
    if (dsums == nullptr) continue;
    AddProducts(stream, z, x, args.w_VD, RowsOrNone(args.dx_ND, begin, rows),
                /*accumulate_dx=*/false, args.dw_VD);
  }
  SumRows<<<1, kSumThreads, 0, Handle(stream)>>>(N, targets, loss, lse, Data<double>(args.sums));
  CheckLaunch("head_loss");
}

template <class T>
void Backward(Stream& stream, const HeadLossBackwardArgs& args) {
  const int64_t N = args.x_ND.dim(0), V = args.w_VD.dim(0);
  const bool kept = args.logits_are_probabilities;
  const ResultGradients results{.dsums = DataOrNull<double>(args.dsums),
                                .dloss_N = DataOrNull<float>(args.dloss_N),
                                .dlse_N = DataOrNull<float>(args.dlse_N)};
  for (int64_t begin = 0; begin < N; begin += args.chunk_rows) {
    const int64_t rows = std::min(args.chunk_rows, N - begin), at = kept ? begin : 0;
    const Tensor x = args.x_ND.Rows(begin, begin + rows), z = args.logits.Rows(at, at + rows);
    if (!kept) cuda::Gemm(stream, {.a = x, .b = args.w_VD, .c = z, .transpose_b = true});
    GradientOfRows<<<rows, kThreads, 0, Handle(stream)>>>(
        V, args.first_row, InEights(z), kept, Data<T>(z), Data<int32_t>(args.targets_N) + begin,
        Data<float>(args.lse_N) + begin, results.From(begin));
    CheckLaunch("head_loss backward");
    AddProducts(stream, z, x, args.w_VD, RowsOrNone(args.dx_ND, begin, rows), args.accumulate_dx,
                args.dw_VD);
  }
}

}  // namespace

void HeadLossForward(Stream& stream, const HeadLossForwardArgs& args) {
  DispatchType("head_loss", args.x_ND.dtype(), [&]<class T>() { Forward<T>(stream, args); });
}

void HeadLossBackward(Stream& stream, const HeadLossBackwardArgs& args) {
  DispatchType("head_loss", args.x_ND.dtype(), [&]<class T>() { Backward<T>(stream, args); });
}

}  // namespace lt2::cuda
