#include "kernels/branch_gate.h"

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/simd.h"

namespace lt2::cpu {
namespace {

// Rows (token and head) of one thread's turn.
constexpr int64_t kRows = 64;

template <class T>
void Forward(const BranchGateForwardArgs& args) {
  const int64_t E = args.o_NHE.dim(2), rows = args.o_NHE.size() / E;
  const T* gates = args.gates_NH3.data<T>();
  const T *a = args.branches_NHE[0].data<T>(), *b = args.branches_NHE[1].data<T>(),
          *c = args.branches_NHE[2].data<T>();
  T* o = args.o_NHE.data<T>();
  ForEachBlock(rows, kRows, rows * E, [=](int64_t, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* gate = gates + row * kBranches;
      const T to_a = Sigmoid(gate[0]), to_b = Sigmoid(gate[1]), to_c = Sigmoid(gate[2]);
#pragma omp simd
      for (int64_t i = row * E; i < (row + 1) * E; ++i) {
        o[i] = to_a * a[i] + to_b * b[i] + to_c * c[i];
      }
    }
  });
}

template <class T>
void Backward(const BranchGateBackwardArgs& args) {
  const int64_t E = args.do_NHE.dim(2), rows = args.do_NHE.size() / E;
  const T* dy = args.do_NHE.data<T>();
  T* dgates = DataOrNull<T>(args.dgates_NH3);
  ForEachBlock(rows, kRows, rows * E, [&](int64_t, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int b = 0; b < kBranches; ++b) {
        const T* x = args.branches_NHE[b].data<T>() + row * E;
        T* dx = DataOrNull<T>(args.dbranches_NHE[b]);
        const T gate = Sigmoid(args.gates_NH3.data<T>()[row * kBranches + b]);
        T along = 0;
#pragma omp simd reduction(+ : along)
        for (int64_t e = 0; e < E; ++e) along += dy[row * E + e] * x[e];
        along *= gate * (T(1) - gate);
        Store(dgates == nullptr ? dgates : dgates + row * kBranches + b, &along, 1,
              args.accumulate_dgates);
        if (dx == nullptr) continue;
        const bool add = args.accumulate_dbranches[b];
#pragma omp simd
        for (int64_t i = row * E; i < (row + 1) * E; ++i) {
          dx[i] = add ? dx[i] + gate * dy[i] : gate * dy[i];
        }
      }
    }
  });
}

}  // namespace

void BranchGateForward(Stream&, const BranchGateForwardArgs& args) {
  DispatchFloat(args.o_NHE.dtype(), [&]<class T>() { Forward<T>(args); });
}

void BranchGateBackward(Stream&, const BranchGateBackwardArgs& args) {
  DispatchFloat(args.do_NHE.dtype(), [&]<class T>() { Backward<T>(args); });
}

}  // namespace lt2::cpu
