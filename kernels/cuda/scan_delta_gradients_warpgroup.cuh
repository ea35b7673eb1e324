// scan_delta_gradients.cuh on warpgroups, for bf16, keys of at most 128 channels and one decay per
// row or none.
//
// E = T^T dU enters linearly, so T^T comes after the sums over value columns:
//   B = -(T^T dU U^T) ⊙ D                X = -exp(G) T^T dU S_in^T + B K
// A persistent block of three warpgroups takes one chunk's head after the other, 64 value columns
// at a time (scan_delta_gradients_stream.cuh), while the next columns are on their way. The groups
// sum
//   0: dO S_in^T and dO U^T      1: dU S_in^T and dU U^T      2: U dS_out^T; dV = beta T^T dU
// and then are left with dQ, X and dWrite.
#pragma once

#include "kernels/cuda/scan_delta_gradients_stream.cuh"

namespace lt2::cuda {

template <int kWidth>
class DeltaGradientPass {
 public:
  using Tiles = GradientTiles<kWidth>;
  // What is small, in shared memory.
  struct Small {
    // With G the sum of a row's and earlier log-decays: G / ln 2, exp(G), exp(G_C - G), exp(G_C).
    float log2_decay[kPanel], from_start[kPanel], to_end[kPanel], whole;
    float beta[kPanel];
    // Of rows: <E, v>, <X, k>, <q, dQ> and <k, dWrite>.
    float e_v[kPanel], x_k[kPanel], q_dq[kPanel], k_write[kPanel];
    float at_end[4], crossing[kGradientThreads / 32];  // of warps
  };
  static constexpr int kAlignment = 1024;
  static constexpr int kBytes = kAlignment + Tiles::kSmall + static_cast<int>(sizeof(Small));

  __device__ DeltaGradientPass(const DeltaGradients<bf16>& data, int items)
      : data_(data),
        n_(data.in.shape),
        shared_((SharedAddress(DynamicShared()) + kAlignment - 1) / kAlignment * kAlignment),
        base_(DynamicShared() + (shared_ - SharedAddress(DynamicShared()))),
        small_(*reinterpret_cast<Small*>(base_ + Tiles::kSmall)),
        stream_(data, items, shared_),
        group_(WarpgroupIndex()),
        row_(RowOfGroup()) {}

  __device__ void Run() {
    const int slices = PanelsOf(n_.v);
    GradientUnit next = stream_.First();
    int next_slice = 0;
    const auto fetch = [&](int stage) {
      if (stream_.There(next)) {
        stream_.FetchSlice(next, next_slice, stage);
        if (++next_slice == slices) next = stream_.After(next), next_slice = 0;
      }
      CommitCopies();
    };
    fetch(0);
    fetch(1);
    int stage = 0;
    for (GradientUnit unit = stream_.First(); stream_.There(unit); unit = stream_.After(unit)) {
      stream_.FetchKeys(unit);
      CommitCopies();
      Clear(wide_);
      Clear(square_);
      for (int slice = 0; slice < slices; ++slice) {
        // Later than this slice's copies came those of the next, and in the first two the keys'.
        if (slice < 2) WaitForCopies<2>();
        if (slice >= 2) WaitForCopies<1>();
        PublishShared();
        __syncthreads();
        if (slice == 0) BeginUnit(stage);
        AddSlice(unit, slice, stage);
        if (slice + 1 == slices) {  // the keys
          if (slices > 1) WaitForCopies<1>();
          if (slices == 1) WaitForCopies<0>();
          PublishShared();
        }
        __syncthreads();
        fetch(stage);
        stage ^= 1;
      }
      Pairs();
      __syncthreads();
      WithPairs();
      __syncthreads();
      StoreUnit(unit);
      __syncthreads();
    }
  }

 private:
  __device__ uint64_t Tile(int at) const { return Descriptor(shared_ + at, Tiles::kPanelBytes); }
  template <int n>
  __device__ static void Clear(float (&sums)[n]) {
#pragma unroll
    for (float& sum : sums) sum = 0;
  }
  // Of a tile in 16 inner indices after `step` times as many: of its columns, and of its rows.
  __device__ static uint64_t Columns(uint64_t tile, int step) { return tile + 2 * step; }
  __device__ static uint64_t Rows(uint64_t tile, int step) { return tile + 128 * step; }

  __device__ void BeginUnit(int stage) {
    const int at = stage * Tiles::kStageBytes;
    const float* beta = reinterpret_cast<const float*>(base_ + at + Tiles::kBeta);
    if (group_ > 0) LoadTransposed(inverse_, shared_ + at + Tiles::kInverse);
#pragma unroll
    for (int i = 0; i < 2; ++i) beta_[i] = beta[row_ + 8 * i];
    crossing_ = e_v_[0] = e_v_[1] = 0;
  }

  // One slice's share of the sums.
  __device__ void AddSlice(const GradientUnit& unit, int slice, int stage) {
    const int at = stage * Tiles::kStageBytes;
    BeginProducts();
    if (group_ < 2) {
      const uint64_t rows = Tile(at + (group_ == 0 ? Tiles::kDo : Tiles::kDu));
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        MultiplyShared(wide_, Columns(rows, step), Columns(Tile(at + Tiles::kState), step), true);
      }
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        MultiplyShared(square_, Columns(rows, step), Columns(Tile(at + Tiles::kU), step), true);
      }
      CommitProducts();
      if (slice == 0) SumDecays(reinterpret_cast<const float*>(base_ + at + Tiles::kDecays));
      AddCrossing(at);
    } else {
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        MultiplyTransposed(square_, inverse_[step], Rows(Tile(at + Tiles::kDu), step), step > 0);
      }
      CommitProducts();
      BeginProducts();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        MultiplyShared(wide_, Columns(Tile(at + Tiles::kU), step),
                       Columns(Tile(at + Tiles::kDstate), step), true);
      }
      CommitProducts();
      AddCrossing(at);
      WaitForProducts<1>();
      Settle(square_);
      StoreValues(unit, slice, base_ + at + Tiles::kV);
    }
    WaitForProducts<0>();
    Settle(wide_);
    Settle(square_);
  }

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

  // <S_in, dS_out> over the thread's share.
  __device__ void AddCrossing(int at) {
#pragma unroll
    for (int row = threadIdx.x / 8; row < kWidth; row += kGradientThreads / 8) {
      const int offset = at + row * kPanelRowBytes + threadIdx.x % 8 * 16;
      const Piece<8> s = Load<8>(reinterpret_cast<const bf16*>(base_ + offset + Tiles::kState));
      const Piece<8> ds = Load<8>(reinterpret_cast<const bf16*>(base_ + offset + Tiles::kDstate));
#pragma unroll
      for (int i = 0; i < 8; ++i) crossing_ += s[i] * ds[i];
    }
  }

  // dV, with E there, by way of V's tile; <E, v>.
  __device__ void StoreValues(const GradientUnit& unit, int slice, unsigned char* tile) {
    ForEachPair(square_, [&](int i, int c, float x, float y) {
      const float2 v = GetPair(tile, row_ + 8 * i, c);
      e_v_[i] += x * v.x + y * v.y;
      *PairAt(tile, row_ + 8 * i, c) = Pack(beta_[i] * x, beta_[i] * y);
    });
    if (data_.dv_NGV.to == nullptr) return;
    __syncwarp();
    StoreRows<8>(tile, data_.dv_NGV.to + stream_.Row(unit) * n_.v + slice * kPanel,
                 int64_t{n_.heads} * n_.v, unit.rows, n_.v - slice * kPanel, data_.dv_NGV.add);
  }

  // The pairs' weights W and beta B, for the others; dQ and X; of dWrite what the state gives.
  __device__ void Pairs() {
    const float crossing = WarpSum(crossing_);
    if (threadIdx.x % 32 == 0) small_.crossing[threadIdx.x / 32] = crossing;
    uint32_t left[4][4];
    if (group_ == 0) {
      MaskPairs(data_.in.scale, 0);
      PackRows(square_, left);
      PutRows(base_ + Tiles::kW, left);
      PublishShared();
      ScaleRows(data_.in.scale, small_.from_start);
      MultiplyRows(left, Tiles::kK);
    } else if (group_ == 1) {
      MultiplyInverse();
      MaskPairs(-1, 1);
      PackRows(square_, left);
      ForEachPair(square_, [&](int i, int, float& x, float& y) { x *= beta_[i], y *= beta_[i]; });
      PutRows(base_ + Tiles::kB, square_);
      PublishShared();
      ScaleRows(-1, small_.from_start);
      MultiplyRows(left, Tiles::kK);
    } else {
      ScaleRows(1, small_.to_end);
      float sum[2] = {};
      AddKeys(sum, Tiles::kK);
      const float at_end = WarpSum(sum[0] + sum[1]);
      if (threadIdx.x % 32 == 0) small_.at_end[threadIdx.x % 128 / 32] = at_end;
      PutRowSums(e_v_, small_.e_v);
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
      ForEachPair(wide_, [&](int i, int, float& x, float& y) { x *= beta_[i], y *= beta_[i]; });
      PutRows(base_ + Tiles::kX, wide_);
      if (threadIdx.x % 4 == 0) small_.beta[row_] = beta_[0], small_.beta[row_ + 8] = beta_[1];
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
        const float2 of_x = GetPair(tile, row_ + 8 * i, c);
        x += of_x.x, y += of_x.y;
      });
    }
    PutRows(tile, wide_);
    __syncwarp();
    const Gradient<bf16>& grad = group_ == 0 ? data_.dq_NHK : data_.dk_NHK;
    if (grad.to == nullptr) return;
    StoreRows<Tiles::kPieces>(tile, grad.to + stream_.KeyRow(unit) * n_.k,
                              int64_t{n_.key_heads} * n_.k, unit.rows, n_.k,
                              grad.add || unit.member > 0);
  }

  // By one warp, two rows a lane.
  __device__ void StoreRowGradients(const GradientUnit& unit) {
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
      if (r < unit.rows && data_.dbeta_NG.to != nullptr) {
        PutOrAdd(data_.dbeta_NG.to, stream_.Row(unit) + int64_t{r} * n_.heads,
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
      if (r >= unit.rows) continue;
      PutOrAdd(data_.dg_NG.to, stream_.Row(unit) + int64_t{r} * n_.heads, static_cast<float>(after),
               data_.dg_NG.add);
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
  __device__ void ScaleRows(float factor, const float* of_row) {
    const float by[2] = {factor * of_row[row_], factor * of_row[row_ + 8]};
    ForEachPair(wide_, [&](int i, int, float& x, float& y) { x *= by[i], y *= by[i]; });
  }
  // wide += left x, x a tile of queries or keys.
  __device__ void MultiplyRows(const uint32_t (&left)[4][4], int x) {
    BeginProducts();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      MultiplyTransposed(wide_, left[step], Rows(Tile(x), step), true);
    }
    CommitProducts();
    WaitForProducts<0>();
    Settle(wide_);
  }
  // square and wide become T^T times what they are.
  __device__ void MultiplyInverse() {
    PutRows(base_ + Tiles::kX, wide_);
    PutRows(base_ + Tiles::kB, square_);
    PublishShared();
    SynchronizeWarpgroup(group_);
    BeginProducts();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      MultiplyTransposed(square_, inverse_[step], Rows(Tile(Tiles::kB), step), step > 0);
      MultiplyTransposed(wide_, inverse_[step], Rows(Tile(Tiles::kX), step), step > 0);
    }
    CommitProducts();
    WaitForProducts<0>();
    Settle(square_);
    Settle(wide_);
    SynchronizeWarpgroup(group_);
  }
  // sum += wide's rows times those of queries or keys: the thread's share.
  __device__ void AddKeys(float (&sum)[2], int x) {
    ForEachPair(wide_, [&](int i, int c, float a, float b) {
      const float2 of = GetPair(base_ + x, row_ + 8 * i, c);
      sum[i] += a * of.x + b * of.y;
    });
  }
  __device__ void PutRowSums(const float (&sum)[2], float* to) {
    const float of[2] = {SumOfRow(sum[0]), SumOfRow(sum[1])};
    if (threadIdx.x % 4 == 0) to[row_] = of[0], to[row_ + 8] = of[1];
  }

  const DeltaGradients<bf16>& data_;
  const ScanShape& n_;
  const uint32_t shared_;
  unsigned char* base_;  // the same place
  Small& small_;
  const GradientStream<kWidth> stream_;
  const int group_, row_;
  float wide_[kWidth / 2], square_[32];
  uint32_t inverse_[4][4];
  float beta_[2], crossing_ = 0, e_v_[2] = {};
};

template <int kWidth>
__global__ void __launch_bounds__(kGradientThreads, 1)
    DeltaGradientsOfWarpgroups(const __grid_constant__ DeltaGradients<bf16> data, int items) {
  DeltaGradientPass<kWidth>(data, items).Run();
}

}  // namespace lt2::cuda
