// scan_delta_gradients.cuh on warpgroups, with one decay per row or none:
//   B = -(T^T dU U^T) ⊙ D      X = -exp(G) T^T dU S_in^T + B K
#include "kernels/cuda/scan_delta_gradients_sums.cuh"

namespace lt2::cuda {
namespace {

struct RowDecayGradients {
  // With G the sum of a row's and earlier log-decays: G / ln 2, exp(G), exp(G_C - G), exp(G_C).
  float log2_decay[kPanel], from_start[kPanel], to_end[kPanel], whole;
  float beta[kPanel];
  // Of rows: <E, v>, <X, k>, <q, dQ> and <k, dWrite>.
  float e_v[kPanel], x_k[kPanel], q_dq[kPanel], k_write[kPanel];
  float at_end[4], crossing[kGradientThreads / 32];  // of warps
};

template <int kWidth>
class DeltaRowGradients : public DeltaGradientSums<kWidth, false, RowDecayGradients> {
 public:
  using Base = DeltaGradientSums<kWidth, false, RowDecayGradients>;
  using Base::Base;
  using typename Base::Tiles;

  __device__ void Run() {
    Base::ForEachUnit(
        [&](int at) { SumDecays(reinterpret_cast<const float*>(base_ + at + Tiles::kDecays)); },
        [&](const GradientUnit& unit, int) {
          Pairs();
          __syncthreads();
          WithPairs();
          __syncthreads();
          StoreUnit(unit);
        });
  }

 private:
  using Base::AddKeys, Base::base_, Base::crossing_, Base::data_;
  using Base::group_, Base::MultiplyInverse, Base::MultiplyRows, Base::n_, Base::PutRowSums;
  using Base::row_, Base::shared_, Base::small_, Base::square_, Base::StoreKeys, Base::stream_;
  using Base::wide_;

  // By the first warp, two rows a lane; sums in double, so that differences of large ones are good.
  // Beyond kLeast exp(g) is zero anyway.
  __device__ void SumDecays(const float* decays) {
    constexpr float kLeast = -100, kLog2E = 1.44269504f;
    if (threadIdx.x >= 32) return;
    const int row = 2 * threadIdx.x;
    double sum[2] = {fmaxf(decays[row], kLeast), fmaxf(decays[row + 1], kLeast)};
    RowWeights::SumRows(sum);
    const double total = __shfl_sync(~0u, sum[1], 31);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float of = kLog2E * static_cast<float>(sum[i]);
      small_.log2_decay[row + i] = of;
      small_.from_start[row + i] = Exp2(of);
      small_.to_end[row + i] = Exp2(kLog2E * static_cast<float>(total - sum[i]));
      if (row + i == kPanel - 1) small_.whole = Exp2(of);
    }
  }

  // The pairs' weights W and beta B, for the others; dQ and X; of dWrite what the state gives.
  __device__ void Pairs() {
    const float crossing = WarpSum(crossing_);
    if (threadIdx.x % 32 == 0) small_.crossing[threadIdx.x / 32] = crossing;
    uint32_t left[4][4];
    if (group_ == 0) {
      MaskPairs(data_.in.scale, 0);
      PackRows(square_, left);
      PutRows(base_ + Tiles::kW, row_, left);
      PublishShared();
      ScaleRows(wide_, data_.in.scale, small_.from_start);
      MultiplyRows(left, Tiles::kK);
    } else if (group_ == 1) {
      MultiplyInverse();
      MaskPairs(-1, 1);
      PackRows(square_, left);
      ScaleRows(square_, 1, small_.beta);
      PutRows(base_ + Tiles::kB, row_, square_);
      PublishShared();
      ScaleRows(wide_, -1, small_.from_start);
      MultiplyRows(left, Tiles::kK);
    } else {
      ScaleRows(wide_, 1, small_.to_end);
      float sum[2] = {};
      AddKeys(sum, Tiles::kK);
      const float at_end = WarpSum(sum[0] + sum[1]);
      if (threadIdx.x % 32 == 0) small_.at_end[threadIdx.x % 128 / 32] = at_end;
    }
  }

  // What needs the other groups' pairs: the rest of dWrite. And the rows' sums.
  __device__ void WithPairs() {
    float sum[2] = {};
    if (group_ == 2) {
      uint32_t left[4][4];
      LoadTransposed(left, shared_ + Tiles::kW);
      MultiplyRows(left, Tiles::kQ);
      LoadTransposed(left, shared_ + Tiles::kB);
      MultiplyRows(left, Tiles::kK);
    }
    AddKeys(sum, group_ == 0 ? Tiles::kQ : Tiles::kK);
    PutRowSums(sum, group_ == 0 ? small_.q_dq : group_ == 1 ? small_.x_k : small_.k_write);
    if (group_ == 1) {
      ScaleRows(wide_, 1, small_.beta);
      PutRows(base_ + Tiles::kX, row_, wide_);
    }
  }

  __device__ void StoreUnit(const GradientUnit& unit) {
    if (group_ == 1) {
      if (threadIdx.x % 128 < 32) StoreRowGradients(unit);
      return;
    }
    unsigned char* tile = base_ + (group_ == 0 ? Tiles::kQ : Tiles::kX);
    if (group_ == 2) {
      ForEachPair(wide_, [&](int i, int c, float& x, float& y) {
        const float2 of_x = GetPair(tile, row_, i, c);
        x += of_x.x, y += of_x.y;
      });
    }
    PutRows(tile, row_, wide_);
    StoreKeys(unit, group_ == 0 ? data_.dq_NHK : data_.dk_NHK, group_ == 0 ? Tiles::kQ : Tiles::kX);
  }

  // By one warp, two rows a lane.
  __device__ void StoreRowGradients(const GradientUnit& unit) {
    const ChunkPlace place = stream_.Place(unit);
    const int lane = threadIdx.x % 32;
    double later[2];
    double at_end = 0, crossing = 0;
    for (int i = 0; i < 4; ++i) at_end += double{small_.at_end[i]};
    for (int i = 0; i < kGradientThreads / 32; ++i) crossing += double{small_.crossing[i]};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int r = 2 * lane + i;
      later[i] = double{small_.q_dq[r]} + double{small_.beta[r] * small_.x_k[r]} -
                 double{small_.k_write[r]};
      if (r < place.rows && data_.dbeta_NG.to != nullptr) {
        PutOrAdd(data_.dbeta_NG.to, stream_.Row(unit, place) + int64_t{r} * n_.heads,
                 small_.e_v[r] + small_.x_k[r], data_.dbeta_NG.add);
      }
    }
    if (data_.dg_NG.to == nullptr) return;
    double from = later[0] + later[1];
#pragma unroll
    for (int ahead = 1; ahead < 32; ahead *= 2) {
      const double after = __shfl_down_sync(~0u, from, ahead);
      if (lane + ahead < 32) from += after;
    }
    double after = __shfl_down_sync(~0u, from, 1);
    if (lane == 31) after = 0;
    after += at_end + double{small_.whole} * crossing;
#pragma unroll
    for (int i = 1; i >= 0; --i) {
      const int r = 2 * lane + i;
      after += later[i];
      if (r >= place.rows) continue;
      PutOrAdd(data_.dg_NG.to, stream_.Row(unit, place) + int64_t{r} * n_.heads,
               static_cast<float>(after), data_.dg_NG.add);
    }
  }

  // square = factor square ⊙ D where j <= r - least, or 0.
  __device__ void MaskPairs(float factor, int least) {
    const float of_row[2] = {small_.log2_decay[row_], small_.log2_decay[row_ + 8]};
    ForEachPair(square_, [&](int i, int c, float& x, float& y) {
      const float2 of_column = *reinterpret_cast<const float2*>(small_.log2_decay + c);
      x *= factor * Exp2(of_row[i] - of_column.x), y *= factor * Exp2(of_row[i] - of_column.y);
      if (c + least > row_ + 8 * i) x = 0;
      if (c + 1 + least > row_ + 8 * i) y = 0;
    });
  }
  template <int n>
  __device__ void ScaleRows(float (&sums)[n], float factor, const float* of_row) {
    const float by[2] = {factor * of_row[row_], factor * of_row[row_ + 8]};
    ForEachPair(sums, [&](int i, int, float& x, float& y) { x *= by[i], y *= by[i]; });
  }
};

template <int kWidth>
__global__ void __launch_bounds__(kGradientThreads, 1)
    DeltaRowGradientsOfWarpgroups(const __grid_constant__ DeltaGradients<bf16> data,
                                  const __grid_constant__ GradientMaps maps, int items) {
  DeltaRowGradients<kWidth>(data, maps, items).Run();
}

}  // namespace

void LaunchRowGradients(const Stream& stream, const DeltaGradients<bf16>& data, int items) {
  LaunchGradients(stream, data, items, [&]<int kWidth>(const auto& launch) {
    launch(DeltaRowGradientsOfWarpgroups<kWidth>, DeltaRowGradients<kWidth>::kBytes);
  });
}

}  // namespace lt2::cuda
