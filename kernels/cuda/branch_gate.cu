#include "kernels/branch_gate.h"
#include "kernels/cuda/row_pass.cuh"

namespace lt2::cuda {
namespace {

// Rows are of a token and head.
template <class T>
struct ForwardData {
  const T *branches_RE[kBranches], *gates_R3;
  T* o_RE;
};

template <class T, int n>
__global__ void __launch_bounds__(256) Forward(int64_t size, int64_t E, ForwardData<T> data) {
  const int64_t i = (int64_t{blockIdx.x} * 256 + threadIdx.x) * n;
  if (i >= size) return;
  Piece<n> sum = {};
#pragma unroll
  for (int b = 0; b < kBranches; ++b) {
    const float gate = SigmoidOf<T>(Get(data.gates_R3, i / E * kBranches + b));
    const Piece<n> branch = Load<n>(data.branches_RE[b] + i);
#pragma unroll
    for (int c = 0; c < n; ++c) sum[c] += gate * branch[c];
  }
  Store<n>(data.o_RE + i, sum);
}

template <class T>
struct BackwardData {
  const T *do_RE, *branches_RE[kBranches], *gates_R3;
  T *dbranches_RE[kBranches], *dgates_R3;  // null where not wanted
  bool accumulate_dbranches[kBranches], accumulate_dgates;
};

// Branch by branch: several may be one value, whose gradient then adds up.
template <class T, int n, int kPieces>
__global__ void __launch_bounds__(256)
    Backward(RowShare share, int64_t rows, BackwardData<T> data) {
  const RowPlace<n, kPieces> place(share);
  const int64_t first = blockIdx.x * share.rows_of_block();
  const bool inside = first + place.group < rows;
  const int64_t row = place.RowFrom(first, rows), at = row * place.width;
  Packed<T, n> dy[kPieces], x[kBranches][kPieces];
  place.LoadRow(data.do_RE + at, dy);
#pragma unroll
  for (int b = 0; b < kBranches; ++b) place.LoadRow(data.branches_RE[b] + at, x[b]);
#pragma unroll
  for (int b = 0; b < kBranches; ++b) {
    const int64_t at_gate = row * kBranches + b;
    const float gate = SigmoidOf<T>(Get(data.gates_R3, at_gate));
    float along = 0;
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
#pragma unroll
      for (int i = 0; i < n; ++i) along += dy[j][i] * x[b][j][i];
    }
    along = place.Sum(along) * gate * (1 - gate);
    if (!inside) continue;
    if (data.dgates_R3 != nullptr && place.lane == 0) {
      PutOrAdd(data.dgates_R3, at_gate, along, data.accumulate_dgates);
    }
    if (data.dbranches_RE[b] == nullptr) continue;
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      Piece<n> dx;
#pragma unroll
      for (int i = 0; i < n; ++i) dx[i] = gate * dy[j][i];
      place.StorePiece(data.dbranches_RE[b] + at, j, dx, data.accumulate_dbranches[b]);
    }
  }
}

template <class T>
void RunForward(const Stream& stream, const BranchGateForwardArgs& args) {
  const int64_t size = args.o_NHE.size(), E = args.o_NHE.dim(2);
  const auto& x = args.branches_NHE;
  const ForwardData<T> data{
      {Data<T>(x[0]), Data<T>(x[1]), Data<T>(x[2])}, Data<T>(args.gates_NH3), Data<T>(args.o_NHE)};
  DispatchPieces<T>(E, {x[0], x[1], x[2], args.o_NHE}, [&]<int n>() {
    Forward<T, n><<<Blocks(size, 256 * n), 256, 0, Handle(stream)>>>(size, E, data);
  });
  CheckLaunch("branch_gate");
}

template <class T>
void RunBackward(const Stream& stream, const BranchGateBackwardArgs& args) {
  const int64_t E = args.do_NHE.dim(2), rows = args.do_NHE.size() / E;
  const auto &x = args.branches_NHE, &dx = args.dbranches_NHE;
  const auto& add = args.accumulate_dbranches;
  const BackwardData<T> data{Data<T>(args.do_NHE),
                             {Data<T>(x[0]), Data<T>(x[1]), Data<T>(x[2])},
                             Data<T>(args.gates_NH3),
                             {DataOrNull<T>(dx[0]), DataOrNull<T>(dx[1]), DataOrNull<T>(dx[2])},
                             DataOrNull<T>(args.dgates_NH3),
                             {add[0], add[1], add[2]},
                             args.accumulate_dgates};
  DispatchPieces<T>(E, {args.do_NHE, x[0], x[1], x[2], dx[0], dx[1], dx[2]}, [&]<int n>() {
    DispatchRow<n>(E, [&]<int kPieces>(RowShare share) {
      Backward<T, n, kPieces>
          <<<Blocks(rows, share.rows_of_block()), 256, 0, Handle(stream)>>>(share, rows, data);
    });
  });
  CheckLaunch("branch_gate backward");
}

}  // namespace

void BranchGateForward(Stream& stream, const BranchGateForwardArgs& args) {
  if (args.o_NHE.size() == 0) return;
  DispatchType("branch_gate", args.o_NHE.dtype(), [&]<class T>() { RunForward<T>(stream, args); });
}

void BranchGateBackward(Stream& stream, const BranchGateBackwardArgs& args) {
  if (args.do_NHE.size() == 0) return;
  DispatchType("branch_gate", args.do_NHE.dtype(),
               [&]<class T>() { RunBackward<T>(stream, args); });
}

}  // namespace lt2::cuda
