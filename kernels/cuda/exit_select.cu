#include "kernels/cuda/piece.cuh"
#include "kernels/exit_select.h"

namespace lt2::cuda {
namespace {

// A warp takes a token.
template <class T, int n>
__global__ void __launch_bounds__(256) Leave(int64_t N, int64_t D, double threshold, const T* h_ND,
                                             const T* gate_N, float* left_N, T* out_ND) {
  const int64_t token = int64_t{blockIdx.x} * 8 + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (token >= N) return;
  float left = left_N[token];
  __syncwarp();  // all have read
  if (left < 0) return;
  if (gate_N != nullptr) {
    left *= 1 / (1 + expf(Get(gate_N, token)));
    if (1.0 - left < threshold) {
      if (lane == 0) left_N[token] = left;
      return;
    }
  }
  if (lane == 0) left_N[token] = -1;
  for (int64_t c = lane * n; c < D; c += 32 * n) {
    Store<n>(out_ND + token * D + c, Load<n>(h_ND + token * D + c));
  }
}

}  // namespace

void ExitSelect(Stream& stream, const ExitSelectArgs& args) {
  const int64_t N = args.h_ND.dim(0), D = args.h_ND.dim(1);
  if (N == 0) return;
  DispatchType("exit_select", args.h_ND.dtype(), [&]<class T>() {
    DispatchPieces<T>(D, {args.h_ND, args.out_ND}, [&]<int n>() {
      Leave<T, n><<<Blocks(N, 8), 256, 0, Handle(stream)>>>(
          N, D, args.threshold, Data<T>(args.h_ND), DataOrNull<T>(args.gate_N),
          Data<float>(args.left_N), Data<T>(args.out_ND));
    });
  });
  CheckLaunch("exit_select");
}

}  // namespace lt2::cuda
