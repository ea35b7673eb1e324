#include "kernels/cuda/column_pass.cuh"
#include "kernels/hgrn_gate.h"

namespace lt2::cuda {
namespace {

// f, k and their gradients are T; bounds, g and their gradients are float.

// log(exp(a) + exp(b)); a may be -infinity.
__device__ inline float LogAddExp(float a, float b) {
  const float larger = fmaxf(a, b), smaller = fminf(a, b);
  return larger + log1pf(expf(smaller - larger));
}

template <class T, int n>
struct Forward {
  static constexpr int kSums = 0;
  const T* f;
  const float* bound;
  float* g;
  T* k;

  struct Columns {
    Piece<n> rest, log_bound, log_rest;  // 1 - l, log l, log(1 - l)
  };
  using Row = Piece<n>;
  __device__ Columns AtColumn(int64_t column) const {
    Columns of;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const float l = bound[column + i];
      of.rest[i] = 1 - l, of.log_bound[i] = logf(l), of.log_rest[i] = log1pf(-l);
    }
    return of;
  }
  __device__ Row Load(int64_t, int64_t at, const Columns&) const { return cuda::Load<n>(f + at); }
  __device__ void Use(int64_t, int64_t at, const Columns& of, const Row& f, Piece<n>*) const {
    Piece<n> decay, written;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      written[i] = of.rest[i] * SigmoidOf<float>(-f[i]);
      // Near exp(g) = 1 from its distance, else from the sum of the two parts: no digits cancel.
      decay[i] = written[i] < 0.5f ? log1pf(-written[i])
                                   : LogAddExp(of.log_bound[i], of.log_rest[i] + LogSigmoid(f[i]));
    }
    Store<n>(g + at, decay);
    Store<n>(k + at, written);
  }
};

template <class T, int n>
struct Backward {
  static constexpr int kSums = 1;
  const float* dg;  // null: zero
  const T* dk;      // null: zero
  const T* f;
  const float* bound;
  T* df;  // may be null
  bool accumulate;

  using Columns = Piece<n>;
  struct Row {
    Piece<n> dg;
    Packed<T, n> dk, f;
  };
  __device__ Columns AtColumn(int64_t column) const { return cuda::Load<n>(bound + column); }
  __device__ Row Load(int64_t, int64_t at, const Columns&) const {
    Row row = {{}, {}, LoadPacked<n>(f + at)};
    if (dg != nullptr) row.dg = cuda::Load<n>(dg + at);
    if (dk != nullptr) row.dk = LoadPacked<n>(dk + at);
    return row;
  }
  __device__ void Use(int64_t, int64_t at, const Columns& bound, const Row& row,
                      Piece<n>* sums) const {
    Piece<n> gradient;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const float open = SigmoidOf<float>(row.f[i]), closed = SigmoidOf<float>(-row.f[i]);
      const float rest = 1 - bound[i], decay = bound[i] + rest * open;
      // Where l = 0 and σ(f) is almost nothing their quotient is still 1.
      const float share = decay > 0 ? rest * open / decay : 1;
      gradient[i] = closed * (row.dg[i] * share - row.dk[i] * rest * open);
      sums[0][i] += closed * ((decay > 0 ? row.dg[i] / decay : 0) - row.dk[i]);
    }
    if (df != nullptr) StoreOrAdd<n>(df + at, gradient, accumulate);
  }
};

// A column's softmax over layers is exp(table - most) / sum.
struct ColumnSoftmax {
  float most, sum;
  __device__ ColumnSoftmax(const float* table_LD, int64_t layers, int64_t width, int64_t d)
      : most(table_LD[d]), sum(0) {
    for (int64_t m = 1; m < layers; ++m) most = fmaxf(most, table_LD[m * width + d]);
    for (int64_t m = 0; m < layers; ++m) sum += expf(table_LD[m * width + d] - most);
  }
  __device__ float Share(float logit) const { return expf(logit - most) / sum; }
};

}  // namespace

void HgrnGateForward(Stream& stream, const HgrnGateForwardArgs& args) {
  const int64_t width = args.bound_D.size(), rows = args.f_ND.size() / width;
  DispatchType("hgrn_gate", args.f_ND.dtype(), [&]<class T>() {
    DispatchPieces<T>(width, {args.f_ND, args.g_ND, args.k_ND}, [&]<int n>() {
      const Forward<T, n> pass{Data<T>(args.f_ND), Data<float>(args.bound_D),
                               Data<float>(args.g_ND), Data<T>(args.k_ND)};
      ColumnPass<n>(stream, "hgrn_gate", rows, width, pass);
    });
  });
}

void HgrnGateBackward(Stream& stream, const HgrnGateBackwardArgs& args) {
  const int64_t width = args.bound_D.size(), rows = args.f_ND.size() / width;
  DispatchType("hgrn_gate", args.f_ND.dtype(), [&]<class T>() {
    DispatchPieces<T>(
        width, {args.dg_ND, args.dk_ND, args.f_ND, args.bound_D, args.df_ND}, [&]<int n>() {
          const Backward<T, n> pass{
              DataOrNull<float>(args.dg_ND), DataOrNull<T>(args.dk_ND), Data<T>(args.f_ND),
              Data<float>(args.bound_D),     DataOrNull<T>(args.df_ND), args.accumulate_df};
          ColumnPass<n>(stream, "hgrn_gate backward", rows, width, pass)
              .Finish(stream, "hgrn_gate backward", 0, DataOrNull<float>(args.dbound_D),
                      args.accumulate_dbound);
        });
  });
}

void LowerBoundForward(Stream& stream, const LowerBoundForwardArgs& args) {
  const int64_t layers = args.table_LD.dim(0), width = args.table_LD.dim(1), layer = args.layer;
  const float* table = Data<float>(args.table_LD);
  float* bound = Data<float>(args.bound_D);
  ForEach(stream, "lower_bound", width, [=] __device__(int64_t d) {
    const ColumnSoftmax softmax(table, layers, width, d);
    float sum = 0;
    for (int64_t m = 1; m <= layer; ++m) sum += softmax.Share(table[m * width + d]);
    bound[d] = sum;
  });
}

void LowerBoundBackward(Stream& stream, const LowerBoundBackwardArgs& args) {
  const int64_t layers = args.table_LD.dim(0), width = args.table_LD.dim(1), layer = args.layer;
  const float *table = Data<float>(args.table_LD), *bound = Data<float>(args.bound_D);
  const float* dbound = Data<float>(args.dbound_D);
  float* dtable = Data<float>(args.dtable_LD);
  ForEach(stream, "lower_bound backward", width, [=] __device__(int64_t d) {
    const ColumnSoftmax softmax(table, layers, width, d);
    for (int64_t m = 0; m < layers; ++m) {
      const float inside = 1 <= m && m <= layer ? 1 : 0;
      dtable[m * width + d] +=
          softmax.Share(table[m * width + d]) * (inside - bound[d]) * dbound[d];
    }
  });
}

}  // namespace lt2::cuda
