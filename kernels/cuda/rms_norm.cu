#include "kernels/cuda/rms_norm.cuh"
#include "kernels/rms_norm.h"

namespace lt2::cuda {
namespace {

template <class T>
struct BackwardData {
  const T *dy_ND, *x_ND;
  const T* more_ND;  // a gradient to add, or null
  const float *w_D, *rstd_N;
  T* dx_ND;  // may be null
  bool accumulate;
};

template <class T, int n, int kPieces>
struct BackwardRow {
  Packed<T, n> dy[kPieces], x[kPieces], more[kPieces];
  float rstd;

  __device__ void Load(const RowPlace<n, kPieces>& place, const BackwardData<T>& data,
                       int64_t row) {
    const int64_t at = row * place.width;
    place.LoadRow(data.dy_ND + at, dy);
    place.LoadRow(data.x_ND + at, x);
    if (data.more_ND != nullptr) place.LoadRow(data.more_ND + at, more);
    rstd = data.rstd_N[row];
  }
};

// Each block's part of dw goes to its group of a row of `partial`. Where registers allow a row is
// read while the one before it is computed with.
template <class T, int n, int kPieces>
__global__ void __launch_bounds__(256, kPieces <= 4 ? 2 : 1)
    Backward(RowShare share, NormGroups groups, BackwardData<T> data, float* partial) {
  const RowPlace<n, kPieces> place(share);
  const int first_column = static_cast<int>(blockIdx.y) * place.width;
  const float* w_V = data.w_D + first_column;
  Piece<n> dw[kPieces] = {};
  const int64_t step = gridDim.x * share.rows_of_block();
  int64_t base = blockIdx.x * share.rows_of_block();
  constexpr bool kAhead = kPieces <= 2;
  BackwardRow<T, n, kPieces> of, next;
  if (kAhead) next.Load(place, data, groups.Row(place.RowFrom(base, groups.tokens)));
  for (; base < groups.tokens; base += step) {
    if (kAhead) of = next;
    (kAhead ? next : of)
        .Load(place, data, groups.Row(place.RowFrom(kAhead ? base + step : base, groups.tokens)));
    const bool inside = base + place.group < groups.tokens;
    const float rstd = inside ? of.rstd : 0;
    float product = 0;
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      const Piece<n> w = place.Weights(w_V, j);
#pragma unroll
      for (int i = 0; i < n; ++i) {
        const float moved = of.dy[j][i] * of.x[j][i];
        dw[j][i] += moved * rstd;
        product += moved * w[i];
      }
    }
    if (data.dx_ND == nullptr) continue;
    const float pull = place.Sum(product) * rstd * rstd * rstd / static_cast<float>(place.width);
    if (!inside) continue;
    const int64_t at = groups.Row(base + place.group) * place.width;
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      const Piece<n> w = place.Weights(w_V, j);
      Piece<n> dx;
#pragma unroll
      for (int i = 0; i < n; ++i) dx[i] = of.dy[j][i] * w[i] * rstd - pull * of.x[j][i];
      if (data.more_ND != nullptr) {
#pragma unroll
        for (int i = 0; i < n; ++i) dx[i] += of.more[j][i];
      }
      place.StorePiece(data.dx_ND + at, j, dx, data.accumulate);
    }
  }
  const int64_t columns = gridDim.y * place.width;
  place.StoreColumnSums(dw, partial + blockIdx.x * columns + first_column);
}

// The same by single warps (row_ring.cuh), to a dx that is written. kMore: there is a gradient to
// add.
template <bool kMore, int kPieces>
using BackwardRing = RowRing<kMore ? 3 : 2, kPieces>;
template <bool kMore, int kPieces>
__global__ void __launch_bounds__(32 * kRingWarps, 1)
    BackwardByWarps(int64_t rows, BackwardData<bf16> data, float* partial) {
  using Ring = BackwardRing<kMore, kPieces>;
  const bf16* from[kMore ? 3 : 2] = {data.dy_ND, data.x_ND};
  if constexpr (kMore) from[2] = data.more_ND;
  Ring ring(from, rows);
  Piece<8> w[kPieces], dw[kPieces] = {};
#pragma unroll
  for (int j = 0; j < kPieces; ++j) w[j] = Load<8>(data.w_D + ring.Column(j));
  RowNumbers rstds{data.rstd_N};
  for (; ring.row >= 0; ring.Next()) {
    const float rstd = rstds.Get(ring.row, Ring::Step());
    const bf16* here = ring.Await();
    float products[kPieces] = {}, product = 0;
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      const Packed<bf16, 8> dy = ring.Get(here, 0, j), x = ring.Get(here, 1, j);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const float moved = dy[i] * x[i];
        dw[j][i] += moved * rstd;
        products[j] += moved * w[j][i];
      }
    }
#pragma unroll
    for (int j = 0; j < kPieces; ++j) product += products[j];
    const float pull = WarpSum(product) * rstd * rstd / static_cast<float>(Ring::kWidth);
    bf16* dx_D = data.dx_ND + ring.row * Ring::kWidth;
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
      const Packed<bf16, 8> dy = ring.Get(here, 0, j), x = ring.Get(here, 1, j);
      Piece<8> dx;
#pragma unroll
      for (int i = 0; i < 8; ++i) dx[i] = rstd * (dy[i] * w[j][i] - pull * x[i]);
      if constexpr (kMore) {
        const Packed<bf16, 8> more = ring.Get(here, 2, j);
#pragma unroll
        for (int i = 0; i < 8; ++i) dx[i] += more[i];
      }
      Store<8>(dx_D + ring.Column(j), dx);
    }
  }
  StoreWarpColumnSums<kPieces>(dw, partial + int64_t{blockIdx.x} * Ring::kWidth);
}

// False where it cannot be done so. Gives `sums` their workspace.
bool RunBackwardByWarps(const Stream& stream, const char* name, const NormGroups& groups,
                        const BackwardData<bf16>& data, PartialSums& sums) {
  if (groups.count > 1 || data.dx_ND == nullptr || data.accumulate) return false;
  return DispatchRingPieces(groups.width, [&]<int kPieces>() {
    sums.bands = RingBlocks(groups.tokens);
    float* partial = ScratchFor<float>(stream, sums.bands * groups.width);
    sums.data = partial;
    const auto launch = [&]<bool kMore>() {
      LaunchRing<BackwardRing<kMore, kPieces>>(stream, name, BackwardByWarps<kMore, kPieces>,
                                               static_cast<unsigned>(sums.bands), groups.tokens,
                                               data, partial);
    };
    data.more_ND != nullptr ? launch.template operator()<true>()
                            : launch.template operator()<false>();
  });
}

template <class T>
void RunBackward(const Stream& stream, const RmsNormBackwardArgs& args) {
  const NormGroups groups(args.w, args.rstd);
  if (groups.tokens == 0) return;
  const int64_t columns = args.w.size();
  T* dx = DataOrNull<T>(args.dx);
  BackwardData<T> data{Data<T>(args.dy),    Data<T>(args.x),        DataOrNull<T>(args.through),
                       Data<float>(args.w), Data<float>(args.rstd), dx,
                       args.accumulate_dx};
  if (data.more_ND == nullptr && args.accumulate_dx) data.more_ND = dx, data.accumulate = false;
  const char* name = "rms_norm backward";
  PartialSums sums{.sums = 1, .columns = columns};
  const std::initializer_list<Tensor> moved = {args.dy, args.x, args.through, args.w, args.dx};
  if constexpr (std::is_same_v<T, bf16>) {
    if (InSixteens(moved) && RunBackwardByWarps(stream, name, groups, data, sums)) {
      return sums.Finish(stream, name, 0, Data<float>(args.dw));
    }
  }
  DispatchPieces<T>(groups.width, moved, [&]<int n>() {
    DispatchRow<n, /*kSums=*/true>(groups.width, [&]<int kPieces>(RowShare share) {
      sums.bands = std::clamp<int64_t>(SummingBlocks(groups.tokens, share), 1,
                                       std::max<int64_t>(528 / groups.count, 1));
      float* partial = ScratchFor<float>(stream, sums.bands * columns);
      sums.data = partial;
      const dim3 grid(static_cast<unsigned>(sums.bands), static_cast<unsigned>(groups.count));
      Backward<T, n, kPieces><<<grid, 256, 0, Handle(stream)>>>(share, groups, data, partial);
    });
  });
  CheckLaunch(name);
  sums.Finish(stream, name, 0, Data<float>(args.dw));
}

}  // namespace

void RmsNormForward(Stream& stream, const RmsNormForwardArgs& args) {
  DispatchType("rms_norm", args.x.dtype(), [&]<class T>() {
    RunRmsForward<T>(stream, "rms_norm", args.x, {}, args.w, {}, args.y, args.rstd, args.eps);
  });
}

void RmsNormBackward(Stream& stream, const RmsNormBackwardArgs& args) {
  DispatchType("rms_norm", args.x.dtype(), [&]<class T>() { RunBackward<T>(stream, args); });
}

}  // namespace lt2::cuda
