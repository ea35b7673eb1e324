// The sums over value columns of the delta rule's gradients, for bf16 and keys of at most 128
// channels: what scan_delta_gradients_warpgroup.cu and scan_delta_gradients_channels.cu begin
// with.
//
// A persistent block of three warpgroups takes one chunk's head after the other, 64 value columns
// at a time (scan_delta_gradients_stream.cuh), while the next columns are on their way. E = T^T dU
// enters linearly, so that T^T may come after the sums. The groups have, "wide" and "square",
//   0: dO S_in^T and dO U^T      1: dU S_in^T and dU U^T      2: U dS_out^T; dV = beta T^T dU
// and are left with dQ, X and dWrite.
#pragma once

#include "kernels/cuda/scan_delta_gradients_stream.cuh"

namespace lt2::cuda {

// kChannels: one decay per key channel. Small: what is small in shared memory, with beta
// of rows and, of channels, <S_in, dS_out> as crossing.
template <int kWidth, bool kChannels, class Small>
class DeltaGradientSums {
 public:
  using Tiles = GradientTiles<kWidth>;
  static constexpr int kAlignment = 1024;
  static constexpr int kBytes = kAlignment + Tiles::kSmall + static_cast<int>(sizeof(Small));

  __device__ DeltaGradientSums(const DeltaGradients<bf16>& data, const GradientMaps& maps,
                               int items)
      : data_(data),
        n_(data.in.shape),
        shared_((SharedAddress(DynamicShared()) + kAlignment - 1) / kAlignment * kAlignment),
        base_(DynamicShared() + (shared_ - SharedAddress(DynamicShared()))),
        small_(*reinterpret_cast<Small*>(base_ + Tiles::kSmall)),
        stream_(data, maps, items, shared_),
        group_(WarpgroupIndex()),
        row_(RowOfGroup()) {}

 protected:
  // All units of the block: begin(stage's place) by the first two groups beside a unit's first
  // products, finish(unit, place of its last stage) once its sums are there. With decays per
  // channel that stage is free until finish ends.
  template <class Begin, class Finish>
  __device__ void ForEachUnit(const Begin& begin, const Finish& finish) {
    const int slices = PanelsOf(n_.v);
    GradientUnit next = stream_.First();
    int next_slice = 0;
    const auto fetch = [&](int stage) {
      if (next.chunk >= 0) {
        stream_.FetchSlice(next, next_slice, stage);
        if (++next_slice == slices) next = stream_.After(next), next_slice = 0;
      }
      CommitCopies();
    };
    stream_.Begin();
    fetch(0);
    fetch(1);
    int stage = 0;
    uint32_t ended = 0;  // a bit a barrier: the parity that it waits for next
    for (GradientUnit unit = stream_.First(); unit.chunk >= 0; unit = stream_.After(unit)) {
      const bool by_engine = stream_.ByEngine(unit);
      stream_.FetchKeys(unit);
      if constexpr (kChannels) stream_.FetchDecays(unit);
      CommitCopies();
      Clear(wide_);
      Clear(square_);
      for (int slice = 0; slice < slices; ++slice) {
        // Later than this slice's copies came those of the next, and in the first two the keys'.
        if (slice < 2) WaitForCopies<2>();
        if (slice >= 2) WaitForCopies<1>();
        if (by_engine) stream_.WaitForStage(stage, ended >> stage & 1), ended ^= 1u << stage;
        PublishShared();
        __syncthreads();
        if (slice == 0) BeginUnit(stage);
        AddSlice(unit, slice, stage, begin);
        const bool last = slice + 1 == slices;
        if (last) {  // the keys
          if (slices > 1) WaitForCopies<1>();
          if (slices == 1) WaitForCopies<0>();
          if (by_engine) stream_.WaitForKeys(ended >> 2), ended ^= 4;
        }
        PublishShared();  // also before the engine writes where threads did
        __syncthreads();
        if (!kChannels || !last) fetch(stage), stage ^= 1;
      }
      finish(unit, stage * Tiles::kStageBytes);
      PublishShared();
      __syncthreads();
      if (kChannels) fetch(stage), stage ^= 1;
    }
  }

  __device__ uint64_t Tile(int at) const { return Descriptor(shared_ + at, Tiles::kPanelBytes); }
  template <int n>
  __device__ static void Clear(float (&sums)[n]) {
#pragma unroll
    for (float& sum : sums) sum = 0;
  }
  // Of a tile in 16 inner indices after `step` times as many: of its columns, and of its rows.
  __device__ static uint64_t Columns(uint64_t tile, int step) { return tile + 2 * step; }
  __device__ static uint64_t Rows(uint64_t tile, int step) { return tile + 128 * step; }

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
    PutRows(base_ + Tiles::kX, row_, wide_);
    PutRows(base_ + Tiles::kB, row_, square_);
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
      const float2 of = GetPair(base_ + x, row_, i, c);
      sum[i] += a * of.x + b * of.y;
    });
  }
  __device__ void PutRowSums(const float (&sum)[2], float* to) {
    const float of[2] = {SumOfRow(sum[0]), SumOfRow(sum[1])};
    if (threadIdx.x % 4 == 0) to[row_] = of[0], to[row_ + 8] = of[1];
  }

  __device__ void StoreKeys(const GradientUnit& unit, const Gradient<bf16>& grad, int tile) {
    __syncwarp();
    if (grad.to == nullptr) return;
    const ChunkPlace place = stream_.Place(unit);
    StoreRows<Tiles::kPieces>(base_ + tile, grad.to + stream_.KeyRow(unit, place) * n_.k,
                              int64_t{n_.key_heads} * n_.k, place.rows, n_.k,
                              grad.add || !stream_.IsFirst(unit));
  }

  const DeltaGradients<bf16>& data_;
  const ScanShape& n_;
  const uint32_t shared_;
  unsigned char* base_;  // the same place
  Small& small_;
  const GradientStream<kWidth> stream_;
  const int group_;
  uint32_t row_;  // the lane's first
  float wide_[kWidth / 2], square_[32];
  uint32_t inverse_[4][4];
  float crossing_ = 0;  // the thread's share of <S_in, dS_out>

 private:
  __device__ void BeginUnit(int stage) {
    const int at = stage * Tiles::kStageBytes;
    const float* beta = reinterpret_cast<const float*>(base_ + at + Tiles::kBeta);
    LoadTransposed(inverse_, shared_ + at + Tiles::kInverse);
    if (group_ == 2 && threadIdx.x % 4 == 0) {
      small_.beta[row_] = beta[row_], small_.beta[row_ + 8] = beta[row_ + 8];
    }
    __syncwarp();
    crossing_ = 0;
  }

  // One slice's share of the sums.
  template <class Begin>
  __device__ void AddSlice(const GradientUnit& unit, int slice, int stage, const Begin& begin) {
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
      if (slice == 0) begin(at);
      AddCrossing(slice, at);
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
      AddCrossing(slice, at);
      WaitForProducts<1>();
      Settle(square_);
      StoreValues(unit, slice, base_ + at + Tiles::kV);
    }
    WaitForProducts<0>();
    Settle(wide_);
    Settle(square_);
  }

  // Shares of <S_in, dS_out>, a channel's by eight lanes.
  __device__ void AddCrossing(int slice, int at) {
    constexpr int kStep = kGradientThreads / 8;
    const uint32_t thread = Anew(threadIdx.x);
#pragma unroll
    for (int step = 0; step * kStep < kWidth; ++step) {
      const int row = thread / 8 + step * kStep;
      if (row >= kWidth) break;
      const int offset = at + row * kPanelRowBytes + thread % 8 * 16;
      const Piece<8> s = Load<8>(reinterpret_cast<const bf16*>(base_ + offset + Tiles::kState));
      const Piece<8> ds = Load<8>(reinterpret_cast<const bf16*>(base_ + offset + Tiles::kDstate));
      float sum = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) sum += s[i] * ds[i];
      if constexpr (kChannels) {
#pragma unroll
        for (int lanes = 1; lanes < 8; lanes *= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
        if (thread % 8 == 0) small_.crossing[row] = (slice == 0 ? 0 : small_.crossing[row]) + sum;
      } else {
        crossing_ += sum;
      }
    }
  }

  // dV, with E there, by way of V's tile; <E, v>.
  __device__ void StoreValues(const GradientUnit& unit, int slice, unsigned char* tile) {
    const float beta[2] = {small_.beta[row_], small_.beta[row_ + 8]};
    float e_v[2] = {};
    ForEachPair(square_, [&](int i, int c, float x, float y) {
      const float2 v = GetPair(tile, row_, i, c);
      e_v[i] += x * v.x + y * v.y;
      *PairAt(tile, row_, i, c) = Pack(beta[i] * x, beta[i] * y);
    });
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float& sum = small_.e_v[row_ + 8 * i];
      const float more = SumOfRow(e_v[i]);
      if (threadIdx.x % 4 == 0) sum = (slice == 0 ? 0 : sum) + more;
    }
    if (data_.dv_NGV.to == nullptr) return;
    const ChunkPlace place = stream_.Place(unit);
    __syncwarp();
    StoreRows<8>(tile, data_.dv_NGV.to + stream_.Row(unit, place) * n_.v + slice * kPanel,
                 int64_t{n_.heads} * n_.v, place.rows, n_.v - slice * kPanel, data_.dv_NGV.add);
  }
};

// A persistent block per multiprocessor: kernel.operator()<kWidth>(launch) calls launch(kernel,
// bytes of shared memory). items: chunks times key heads.
template <class Kernel>
void LaunchGradients(const Stream& stream, const DeltaGradients<bf16>& data, int items,
                     const Kernel& kernel) {
  const GradientMaps maps = GradientMapsOf(data, items / data.in.shape.key_heads);
  const auto launch = [&](const auto of_width, int bytes) {
    AllowShared(of_width, bytes);
    of_width<<<static_cast<unsigned>(std::min(items, Processors())), kGradientThreads, bytes,
               Handle(stream)>>>(data, maps, items);
    CheckLaunch("scan_delta gradients");
  };
  if (data.in.shape.k <= 64) return kernel.template operator()<64>(launch);
  if (data.in.shape.k <= 96) return kernel.template operator()<96>(launch);
  kernel.template operator()<128>(launch);
}

}  // namespace lt2::cuda
