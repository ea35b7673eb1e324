#include "kernels/cuda/column_pass.cuh"
#include "kernels/decay_gate.h"

namespace lt2::cuda {
namespace {

// a and da are T; dt, g and their gradients are float.
template <int n>
struct Rates {
  Piece<n> rate, bias;  // -exp(A_log), dt_bias
};

template <int n>
__device__ Rates<n> RatesAt(const float* A_log, const float* dt_bias, int64_t per_head,
                            int64_t column) {
  Rates<n> rates;
#pragma unroll
  for (int i = 0; i < n; ++i) {
    rates.rate[i] = -expf(A_log[(column + i) / per_head]);
    rates.bias[i] = dt_bias[column + i];
  }
  return rates;
}

template <class T, int n>
struct Forward {
  static constexpr int kSums = 0;
  const T* a;
  const float *A_log, *dt_bias;
  int64_t per_head;
  float *dt, *g;  // dt may be null

  using Columns = Rates<n>;
  using Row = Piece<n>;
  __device__ Columns AtColumn(int64_t column) const {
    return RatesAt<n>(A_log, dt_bias, per_head, column);
  }
  __device__ Row Load(int64_t, int64_t at, const Columns&) const { return cuda::Load<n>(a + at); }
  __device__ void Use(int64_t, int64_t at, const Columns& of, const Row& a, Piece<n>*) const {
    Piece<n> step, decay;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      step[i] = SoftPlus(a[i] + of.bias[i]);
      decay[i] = of.rate[i] * step[i];
    }
    if (dt != nullptr) Store<n>(dt + at, step);
    Store<n>(g + at, decay);
  }
};

template <class T, int n>
struct Backward {
  static constexpr int kSums = 2;  // of e, and of dg g
  const float *ddt, *dg;           // null: zero
  const float* g;
  const T* a;
  const float *A_log, *dt_bias;
  int64_t per_head;
  T* da;  // may be null
  bool accumulate;

  using Columns = Rates<n>;
  struct Row {
    Piece<n> ddt, dg, g, a;
  };
  __device__ Columns AtColumn(int64_t column) const {
    return RatesAt<n>(A_log, dt_bias, per_head, column);
  }
  __device__ Row Load(int64_t, int64_t at, const Columns&) const {
    Row row = {{}, {}, cuda::Load<n>(g + at), cuda::Load<n>(a + at)};
    if (ddt != nullptr) row.ddt = cuda::Load<n>(ddt + at);
    if (dg != nullptr) row.dg = cuda::Load<n>(dg + at);
    return row;
  }
  __device__ void Use(int64_t, int64_t at, const Columns& of, const Row& row,
                      Piece<n>* sums) const {
    Piece<n> e;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const float z = row.a[i] + of.bias[i];
      e[i] = (row.ddt[i] + of.rate[i] * row.dg[i]) * (z > 20 ? 1 : SigmoidOf<float>(z));
      sums[0][i] += e[i];
      sums[1][i] += row.dg[i] * row.g[i];
    }
    if (da != nullptr) StoreOrAdd<n>(da + at, e, accumulate);
  }
};

}  // namespace

void DecayGateForward(Stream& stream, const DecayGateForwardArgs& args) {
  const int64_t channels = args.dt_bias.size(), rows = args.a.size() / channels;
  DispatchType("decay_gate", args.a.dtype(), [&]<class T>() {
    DispatchPieces<T>(channels, {args.a, args.dt, args.g}, [&]<int n>() {
      const Forward<T, n> pass{Data<T>(args.a),
                               Data<float>(args.A_log),
                               Data<float>(args.dt_bias),
                               channels / args.A_log.size(),
                               DataOrNull<float>(args.dt),
                               Data<float>(args.g)};
      ColumnPass<n>(stream, "decay_gate", rows, channels, pass);
    });
  });
}

void DecayGateBackward(Stream& stream, const DecayGateBackwardArgs& args) {
  const int64_t channels = args.dt_bias.size(), rows = args.a.size() / channels;
  const int64_t per_head = channels / args.A_log.size();
  DispatchType("decay_gate", args.a.dtype(), [&]<class T>() {
    DispatchPieces<T>(channels, {args.ddt, args.dg, args.g, args.a, args.da}, [&]<int n>() {
      const Backward<T, n> pass{DataOrNull<float>(args.ddt),
                                DataOrNull<float>(args.dg),
                                Data<float>(args.g),
                                Data<T>(args.a),
                                Data<float>(args.A_log),
                                Data<float>(args.dt_bias),
                                per_head,
                                DataOrNull<T>(args.da),
                                args.accumulate_da};
      const char* name = "decay_gate backward";
      const PartialSums sums = ColumnPass<n>(stream, name, rows, channels, pass);
      sums.Finish(stream, name, 0, Data<float>(args.ddt_bias));
      sums.FinishGroups(stream, name, 1, per_head, Data<float>(args.dA_log));
    });
  });
}

}  // namespace lt2::cuda
