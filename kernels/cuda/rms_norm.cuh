// The forward pass of RMS norms, with or without a residual sum before it. Groups of a token's
// channels are normed each for itself.
#pragma once

#include "kernels/cuda/row_pass.cuh"
#include "kernels/cuda/row_ring.cuh"

namespace lt2::cuda {

// The value that memory of type T keeps.
template <class T>
__device__ inline float Rounded(float x) {
  if constexpr (std::is_same_v<T, bf16>) return __bfloat162float(__float2bfloat16_rn(x));
  return x;
}

// A block's rows are one group (blockIdx.y) of many tokens: group g of token t is row t G + g.
struct NormGroups {
  int64_t tokens = 0, count = 1, width = 0;  // width: channels of a group

  NormGroups(const Tensor& w, const Tensor& rstd)
      : count(rstd.shape().rank() > 1 ? rstd.shape().back() : 1) {
    tokens = rstd.size() / count;
    width = w.size() / count;
  }
  __device__ int64_t Row(int64_t token) const { return token * count + blockIdx.y; }
};

template <class T>
struct RmsForwardData {
  const T *x_ND, *residual_ND;  // residual and sum may be null
  const float* w_D;
  T *sum_ND, *y_ND;
  float* rstd_N;
  float eps;
};

template <class T, int n, int kPieces>
__global__ void __launch_bounds__(256)
    RmsForwardKernel(RowShare share, NormGroups groups, RmsForwardData<T> data) {
  const RowPlace<n, kPieces> place(share);
  const int64_t first = blockIdx.x * share.rows_of_block();
  const bool inside = first + place.group < groups.tokens;
  const int64_t row = groups.Row(place.RowFrom(first, groups.tokens)), at = row * place.width;
  const float* w_V = data.w_D + blockIdx.y * place.width;
  Packed<T, n> x_there[kPieces], residual[kPieces];
  place.LoadRow(data.x_ND + at, x_there);
  if (data.residual_ND != nullptr) place.LoadRow(data.residual_ND + at, residual);
  Piece<n> x[kPieces];
#pragma unroll
  for (int j = 0; j < kPieces; ++j) x[j] = Unpacked(x_there[j]);
  if (data.residual_ND != nullptr) {
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
#pragma unroll
      for (int i = 0; i < n; ++i) x[j][i] = Rounded<T>(x[j][i] + residual[j][i]);
      if (inside) place.StorePiece(data.sum_ND + at, j, x[j]);
    }
  }
  float squares = 0;
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
#pragma unroll
    for (int i = 0; i < n; ++i) squares += x[j][i] * x[j][i];
  }
  const float rstd = rsqrtf(place.Sum(squares) / static_cast<float>(place.width) + data.eps);
  if (!inside) return;
#pragma unroll
  for (int j = 0; j < kPieces; ++j) {
    const Piece<n> w = place.Weights(w_V, j);
#pragma unroll
    for (int i = 0; i < n; ++i) x[j][i] *= rstd * w[i];
    place.StorePiece(data.y_ND + at, j, x[j]);
  }
  if (place.lane == 0) data.rstd_N[row] = rstd;
}

// The same by single warps (row_ring.cuh).
template <bool kResidual, int kPieces>
using RmsForwardRing = RowRing<kResidual ? 2 : 1, kPieces>;
template <bool kResidual, int kPieces>
__global__ void __launch_bounds__(32 * kRingWarps, 1)
    RmsForwardByWarps(int64_t rows, RmsForwardData<bf16> data) {
  using Ring = RmsForwardRing<kResidual, kPieces>;
  const bf16* from[kResidual ? 2 : 1] = {data.x_ND};
  if constexpr (kResidual) from[1] = data.residual_ND;
  Ring ring(from, rows);
  Piece<8> w[kPieces];
#pragma unroll
  for (int j = 0; j < kPieces; ++j) w[j] = Load<8>(data.w_D + ring.Column(j));
  for (; ring.row >= 0; ring.Next()) {
    const bf16* here = ring.Await();
    const int64_t at = ring.row * Ring::kWidth;
    Packed<bf16, 8> x[kPieces];
    float squares[kPieces] = {}, sum = 0;
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      x[j] = ring.Get(here, 0, j);
      if constexpr (kResidual) {
        const Packed<bf16, 8> residual = ring.Get(here, 1, j);
#pragma unroll
        for (int i = 0; i < 8; i += 2) {
          x[j].word[i / 2] = Halves(x[j][i] + residual[i], x[j][i + 1] + residual[i + 1]);
        }
        *reinterpret_cast<Packed<bf16, 8>*>(data.sum_ND + at + ring.Column(j)) = x[j];
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) squares[j] += x[j][i] * x[j][i];
    }
#pragma unroll
    for (int j = 0; j < kPieces; ++j) sum += squares[j];
    const float rstd = rsqrtf(WarpSum(sum) / static_cast<float>(Ring::kWidth) + data.eps);
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      Piece<8> y;
#pragma unroll
      for (int i = 0; i < 8; ++i) y[i] = x[j][i] * (rstd * w[j][i]);
      Store<8>(data.y_ND + at + ring.Column(j), y);
    }
    if (ring.lane == 0) data.rstd_N[ring.row] = rstd;
  }
}

// False where it cannot be done so.
template <class = void>
bool RunRmsForwardByWarps(const Stream& stream, const char* name, const NormGroups& groups,
                          const RmsForwardData<bf16>& data) {
  if (groups.count > 1) return false;
  return DispatchRingPieces(groups.width, [&]<int kPieces>() {
    const auto launch = [&]<bool kResidual>() {
      LaunchRing<RmsForwardRing<kResidual, kPieces>>(
          stream, name, RmsForwardByWarps<kResidual, kPieces>, RingBlocks(groups.tokens),
          groups.tokens, data);
    };
    data.residual_ND != nullptr ? launch.template operator()<true>()
                                : launch.template operator()<false>();
  });
}

template <class T>
void RunRmsForward(const Stream& stream, const char* name, const Tensor& x, const Tensor& residual,
                   const Tensor& w, const Tensor& sum, const Tensor& y, const Tensor& rstd,
                   double eps) {
  const NormGroups groups(w, rstd);
  if (groups.tokens == 0) return;
  const RmsForwardData<T> data{
      Data<T>(x), DataOrNull<T>(residual), Data<float>(w),         DataOrNull<T>(sum),
      Data<T>(y), Data<float>(rstd),       static_cast<float>(eps)};
  if constexpr (std::is_same_v<T, bf16>) {
    if (InSixteens({x, residual, w, sum, y}) && RunRmsForwardByWarps(stream, name, groups, data)) {
      return;
    }
  }
  DispatchPieces<T>(groups.width, {x, residual, w, sum, y}, [&]<int n>() {
    DispatchRow<n>(groups.width, [&]<int kPieces>(RowShare share) {
      const dim3 grid(Blocks(groups.tokens, share.rows_of_block()),
                      static_cast<unsigned>(groups.count));
      RmsForwardKernel<T, n, kPieces><<<grid, 256, 0, Handle(stream)>>>(share, groups, data);
    });
  });
  CheckLaunch(name);
}

}  // namespace lt2::cuda
