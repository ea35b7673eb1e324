// scan_delta_gradients.cuh on warpgroups, with one decay per key channel.
//
// Pairs of rows under such a decay are taken in eights of rows, one eight after the other: with
// G^e the sum of log-decays up to the last row of eight e, the sums of rows in later eights stand
// at G^e while what e adds is
//   W_rj exp(G^e - G_j) k_j  resp., backwards and at G^(e-1),  W_rj exp(G_r - G^(e-1)) q_r
// and on the way to the next eight they are multiplied by exp(G^(e+1) - G^e). No exponent is above
// zero. What the state gives is the beginning: it stands at the chunk's start or end. Pairs inside
// an eight are taken one by one.
#include "kernels/cuda/scan_delta_gradients_sums.cuh"

namespace lt2::cuda {
namespace {

inline constexpr int kEight = 8, kEights = kPanel / kEight;

template <int kWidth>
struct ChannelDecayGradients {
  float beta[kPanel], e_v[kPanel], x_k[kPanel];    // of rows: beta, <E, v> and <X, k>
  float of_eight[kEights][kWidth], whole[kWidth];  // exp of an eight's log-decays, and of all
  float at_end[4][kWidth], crossing[kWidth];       // shares of the last row's dG; <S_in, dS_out>
};

template <int kWidth>
class DeltaChannelGradients
    : public DeltaGradientSums<kWidth, true, ChannelDecayGradients<kWidth>> {
 public:
  using Base = DeltaGradientSums<kWidth, true, ChannelDecayGradients<kWidth>>;
  using Base::Base;
  using typename Base::Tiles;

  __device__ void Run() {
    Base::ForEachUnit([](int) {},
                      [&](const GradientUnit& unit, int at) {
                        at_ = at;
                        Finish(unit);
                      });
  }

 private:
  using Base::AddKeys, Base::base_, Base::data_;
  using Base::group_, Base::MultiplyInverse, Base::n_, Base::PutRowSums, Base::Rows, Base::row_;
  using Base::shared_, Base::small_, Base::square_, Base::StoreKeys, Base::stream_, Base::Tile;
  using Base::wide_;

  // In the last stage: G / ln 2 of row -1 (zero) and all rows, later q dQ + beta k X - k dWrite;
  // and keys scaled to their eight's last row (late), and beta K to the row before their eight
  // (early).
  static constexpr int kStride = kWidth + 8;
  static constexpr int kSumsBytes = ((kPanel + 1) * kStride * 4 + 1023) / 1024 * 1024;
  static_assert(kSumsBytes + 2 * Tiles::kPanels * Tiles::kPanelBytes <= Tiles::kStageBytes);

  __device__ float* Sums() const { return reinterpret_cast<float*>(base_ + at_) + kStride; }
  __device__ int Late() const { return at_ + kSumsBytes; }
  __device__ int Early() const { return Late() + Tiles::kPanels * Tiles::kPanelBytes; }

  __device__ void Finish(const GradientUnit& unit) {
    SumDecays();
    __syncthreads();
    row_ = Anew(row_);
    Pairs();
    PublishShared();
    __syncthreads();
    row_ = Anew(row_);
    AddPairs();
    __syncthreads();
    PairsInEights();
    __syncthreads();
    row_ = Anew(row_);
    LeaveAnchors();
    AddTile(group_ == 0 ? Late() : group_ == 1 ? Early() : Tiles::kX);
    __syncthreads();
    if (group_ == 0) {
      AddDecayGradients<true>(Tiles::kQ, 1);
      AddDiagonal(Tiles::kK);
      PutRows(base_ + Late(), row_, wide_);
    } else if (group_ == 1) {
      float sum[2] = {};
      AddKeys(sum, Tiles::kK);
      PutRowSums(sum, small_.x_k);
      const float beta[2] = {small_.beta[row_], small_.beta[row_ + 8]};
      ForEachPair(wide_, [&](int i, int, float& x, float& y) { x *= beta[i], y *= beta[i]; });
    }
    __syncthreads();
    if (group_ == 0) StoreKeys(unit, data_.dq_NHK, Late());
    if (group_ == 1) {
      AddDecayGradients(Tiles::kK, 1);
      PutRows(base_ + Tiles::kX, row_, wide_);
    }
    __syncthreads();
    if (group_ == 2) {
      AddDecayGradients(Tiles::kK, -1);
      AddDiagonal(Tiles::kQ);
      AddTile(Tiles::kX);
      PutRows(base_ + Tiles::kX, row_, wide_);
      StoreKeys(unit, data_.dk_NHK, Tiles::kX);
    }
    __syncthreads();
    StoreRowGradients(unit);
  }

  __device__ float2 SumAt(int r, int c) const {
    return *reinterpret_cast<const float2*>(Sums() + r * kStride + c);
  }

  __device__ void SumDecays() {
    constexpr float kLeast = -100, kLog2E = 1.44269504f;  // beyond kLeast exp(g) is zero anyway
    const float* decays = reinterpret_cast<const float*>(base_ + Tiles::kW);
#pragma unroll 1
    for (uint32_t i = Anew(threadIdx.x); i < kEights * kWidth; i += kGradientThreads) {
      const int first = i / kWidth * kEight, c = i % kWidth;
      float sum = 0;
      if (first == 0) Sums()[c - kStride] = 0;
#pragma unroll 8
      for (int r = 0; r < first; ++r) sum += fmaxf(decays[r * kWidth + c], kLeast);
      const float before = sum;
#pragma unroll
      for (int r = first; r < first + kEight; ++r) {
        sum += fmaxf(decays[r * kWidth + c], kLeast);
        Sums()[r * kStride + c] = kLog2E * sum;
      }
      small_.of_eight[i / kWidth][c] = Exp2(kLog2E * (sum - before));
      if (first + kEight == kPanel) small_.whole[c] = Exp2(kLog2E * sum);
    }
  }

  // W and B, without decays; keys scaled within their eights; the last row's share of dG.
  __device__ void Pairs() {
    const auto mask = [&](float factor, int least) {
      ForEachPair(square_, [&](int i, int c, float& x, float& y) {
        x = c + least <= row_ + 8 * i ? factor * x : 0;
        y = c + 1 + least <= row_ + 8 * i ? factor * y : 0;
      });
    };
    if (group_ == 0) {
      mask(data_.in.scale, 0);
      PackRows(square_, left_);
      PutRows(base_ + Tiles::kW, row_, left_);
      PutScaled(Late(), Tiles::kK, [&](int r, int c, Piece<8>& piece) {
        ScaleBetween(piece, r / kEight * kEight + kEight - 1, r, c, 1);
      });
    } else if (group_ == 1) {
      MultiplyInverse();
      mask(-1, 1);
      PackRows(square_, left_);
      PutRows(base_ + Tiles::kB, row_, left_);
    } else {
      AtEnd();
      PutScaled(Early(), Tiles::kK, [&](int r, int c, Piece<8>& piece) {
        ScaleBetween(piece, r, r / kEight * kEight - 1, c, small_.beta[r]);
      });
#pragma unroll
      for (auto& step : left_) {  // as in the other groups: no older values need be kept
#pragma unroll
        for (uint32_t& pair : step) pair = 0;
      }
    }
  }

  // The pairs of rows in different eights.
  __device__ void AddPairs() {
    const int first =
        threadIdx.x % 128 / 32 * 2;  // eight of the lane's first row; then comes the next
    if (group_ < 2) {
      const float factor = group_ == 0 ? data_.in.scale : -1;
      ForEachPair(wide_, [&](int, int, float& x, float& y) { x *= factor, y *= factor; });
#pragma unroll
      for (int eight = 0; eight + 1 < kEights; ++eight) {
        const bool takes[2] = {first > eight, first + 1 > eight};
        MoveAnchor(takes, eight);
        AddEight(takes, left_, Late(), eight);
        FinishEight();
      }
    } else {
      PutScaled(Tiles::kX, Tiles::kQ, [&](int r, int c, Piece<8>& piece) {
        ScaleBetween(piece, r, r / kEight * kEight - 1, c, 1);
      });
      PublishShared();
      SynchronizeWarpgroup(group_);
      uint32_t of_b[4][4];
      LoadTransposed(left_, shared_ + Tiles::kW);
      LoadTransposed(of_b, shared_ + Tiles::kB);
#pragma unroll
      for (int eight = kEights - 1; eight > 0; --eight) {
        const bool takes[2] = {first < eight, first + 1 < eight};
        MoveAnchor(takes, eight);
        AddEight(takes, left_, Tiles::kX, eight);
        AddEight(takes, of_b, Early(), eight);
        FinishEight();
      }
    }
  }
  // A barrier of the group after kColumns columns: so that no more factors are loaded ahead than
  // registers hold.
  template <int kColumns>
  __device__ void Pause(int i, int column) const {
    if (i == 1 && (column / 8 + 1) * 8 % kColumns == 0) SynchronizeWarpgroup(group_);
  }
  // From G at the last row of the eight before, or backwards of the own eight, to the row's own.
  __device__ void LeaveAnchors() {
    ForEachPair(wide_, [&](int i, int c, float& x, float& y) {
      const int row = row_ + 8 * i, before = row / kEight * kEight - 1;
      const float2 of = SumAt(row, c), from = SumAt(group_ < 2 ? before : before + kEight, c);
      x *= Exp2(-fabsf(of.x - from.x)), y *= Exp2(-fabsf(of.y - from.y));
      Pause<16>(i, c);
    });
  }
  // takes: for the lane's first and second rows, whether the eight's pairs are theirs.
  __device__ void MoveAnchor(const bool (&takes)[2], int eight) {
    ForEachPair(wide_, [&](int i, int c, float& x, float& y) {
      const float2 by = *reinterpret_cast<const float2*>(&small_.of_eight[eight][c]);
      if (takes[i]) x *= by.x, y *= by.y;
      Pause<64>(i, c);
    });
  }
  // wide += those rows of left, the eight's inner indices alone, times x.
  __device__ void AddEight(const bool (&takes)[2], const uint32_t (&left)[4][4], int x, int eight) {
    const int step = eight / 2, half = eight % 2 * 2;
    uint32_t a[4] = {};
#pragma unroll
    for (int i = 0; i < 2; ++i) a[half + i] = takes[i] ? left[step][half + i] : 0;
    BeginProducts();
    MultiplyTransposed(wide_, a, Rows(Tile(x), step), true);
    CommitProducts();
  }
  __device__ void FinishEight() {
    WaitForProducts<0>();
    Settle(wide_);
  }

  // Those inside an eight but a row with itself, a thread a channel: for dQ where late keys were,
  // for X where the early ones were, for dWrite where the queries were.
  __device__ void PairsInEights() {
#pragma unroll 1
    for (uint32_t i = Anew(threadIdx.x); i < kEights * kWidth; i += kGradientThreads) {
      const uint32_t first = i / kWidth * kEight, c = i % kWidth;
      // Element (first + r, c) of a tile; rows of W and B, columns from first on.
      const uint32_t in_row = c / 8 % 8 * 16 + c % 8 * 2, rows = first * kPanelRowBytes;
      const uint32_t panel = rows + c / 64 * Tiles::kPanelBytes;
      const auto at = [&](int tile, int r) {
        return reinterpret_cast<bf16*>(base_ + tile + panel + r * kPanelRowBytes +
                                       (in_row ^ r * 16));
      };
      const auto pairs = [&](int tile, int r) {
        return Load<8>(reinterpret_cast<const bf16*>(base_ + tile + rows + r * kPanelRowBytes +
                                                     (first * 2 ^ r * 16)));
      };
      const float* sums = Sums() + first * kStride + c;
      const auto step = [&](int r) { return Exp2(sums[r * kStride] - sums[(r - 1) * kStride]); };
      float keys[kEight];  // k_j exp(G_r - G_j)
#pragma unroll
      for (int r = 0; r < kEight; ++r) {
        if (r > 0) {
          const float by = step(r);
#pragma unroll
          for (int j = 0; j < r; ++j) keys[j] *= by;
        }
        keys[r] = __bfloat162float(*at(Tiles::kK, r));
        const Piece<8> w = pairs(Tiles::kW, r), b = pairs(Tiles::kB, r);
        float dq = 0, x = 0;
#pragma unroll
        for (int j = 0; j < r; ++j) dq += w[j] * keys[j], x += b[j] * keys[j];
        *at(Late(), r) = __float2bfloat16_rn(dq);
        *at(Early(), r) = __float2bfloat16_rn(x);
      }
      float write[kEight] = {};  // of rows r on, at G_r
#pragma unroll
      for (int r = kEight - 1; r >= 0; --r) {
        const float by = r + 1 < kEight ? step(r + 1) : 0;
        const float q = __bfloat162float(*at(Tiles::kQ, r));
        const float beta_k = small_.beta[first + r] * __bfloat162float(*at(Tiles::kK, r));
        const Piece<8> w = pairs(Tiles::kW, r), b = pairs(Tiles::kB, r);
#pragma unroll
        for (int j = 0; j < r; ++j) write[j] = write[j] * by + w[j] * q + b[j] * beta_k;
        write[r] *= by;
        *at(Tiles::kX, r) = __float2bfloat16_rn(write[r]);
      }
    }
  }

  // sum over r of <k_r, exp(G_C - G_r) dS_out u_r>, a warp its rows.
  __device__ void AtEnd() {
    const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
#pragma unroll
    for (int j = 0; j < kWidth / 8; ++j) {
      const int c = 8 * j + lane % 4 * 2;
      const float2 last = SumAt(kPanel - 1, c);
      float2 sum = {0, 0};
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float2 of = SumAt(row_ + 8 * i, c), k = GetPair(base_ + Tiles::kK, row_, i, c);
        sum.x += k.x * Exp2(last.x - of.x) * wide_[4 * j + 2 * i];
        sum.y += k.y * Exp2(last.y - of.y) * wide_[4 * j + 2 * i + 1];
      }
#pragma unroll
      for (int lanes = 4; lanes < 32; lanes *= 2) {
        sum.x += __shfl_xor_sync(~0u, sum.x, lanes);
        sum.y += __shfl_xor_sync(~0u, sum.y, lanes);
      }
      Pause<16>(1, c);
      if (lane < 4) *reinterpret_cast<float2*>(&small_.at_end[warp][c]) = sum;
    }
  }

  // to = from as fn leaves its pieces, by the group.
  template <class Fn>
  __device__ void PutScaled(int to, int from, const Fn& fn) {
#pragma unroll 2
    for (uint32_t i = Anew(threadIdx.x % 128); i < kPanel * Tiles::kPieces; i += 128) {
      const int r = i / Tiles::kPieces, piece = i % Tiles::kPieces;
      const uint32_t at = PanelOffset(kPanel, r, piece);
      Piece<8> x = Load<8>(reinterpret_cast<const bf16*>(base_ + from + at));
      fn(r, piece * 8, x);
      Store<8>(reinterpret_cast<bf16*>(base_ + to + at), x);
    }
  }
  // Times factor exp(G_later - G_earlier).
  __device__ void ScaleBetween(Piece<8>& piece, int later, int earlier, int c, float factor) {
    const Piece<8> to = Load<8>(Sums() + later * kStride + c);
    const Piece<8> from = Load<8>(Sums() + earlier * kStride + c);
#pragma unroll
    for (int i = 0; i < 8; ++i) piece[i] *= factor * Exp2(to[i] - from[i]);
  }

  __device__ void AddTile(int tile) {
    ForEachPair(wide_, [&](int i, int c, float& x, float& y) {
      const float2 of = GetPair(base_ + tile, row_, i, c);
      x += of.x, y += of.y;
    });
  }
  // wide += W_rr times queries or keys: of a row with itself, which no decay lies between and of
  // which dG, by way of both, would keep no more than how it was rounded.
  __device__ void AddDiagonal(int tile) {
    const auto diagonal = [&](uint32_t r) {
      const unsigned char* piece = base_ + Tiles::kW + PanelOffset(kPanel, r, r / 8);
      return __bfloat162float(reinterpret_cast<const bf16*>(piece)[r % 8]);
    };
    const float w[2] = {diagonal(row_), diagonal(row_ + 8)};
    ForEachPair(wide_, [&](int i, int c, float& x, float& y) {
      const float2 of = GetPair(base_ + tile, row_, i, c);
      x += w[i] * of.x, y += w[i] * of.y;
    });
  }
  template <bool kFirst = false>
  __device__ void AddDecayGradients(int tile, float factor) {
    ForEachPair(wide_, [&](int i, int c, float x, float y) {
      const float2 of = GetPair(base_ + tile, row_, i, c);
      float2& to = *reinterpret_cast<float2*>(Sums() + (row_ + 8 * i) * kStride + c);
      to.x = (kFirst ? 0 : to.x) + factor * of.x * x;
      to.y = (kFirst ? 0 : to.y) + factor * of.y * y;
    });
  }

  // dg_r: the sum of dG over r and later rows; dbeta.
  __device__ void StoreRowGradients(const GradientUnit& unit) {
    const ChunkPlace place = stream_.Place(unit);
    const int64_t row = stream_.Row(unit, place);
    if (threadIdx.x < place.rows && data_.dbeta_NG.to != nullptr) {
      PutOrAdd(data_.dbeta_NG.to, row + int64_t{threadIdx.x} * n_.heads,
               small_.e_v[threadIdx.x] + small_.x_k[threadIdx.x], data_.dbeta_NG.add);
    }
    if (data_.dg_NGK.to == nullptr) return;
#pragma unroll 1
    for (uint32_t i = Anew(threadIdx.x); i < kEights * kWidth; i += kGradientThreads) {
      const int first = i / kWidth * kEight, c = i % kWidth;
      if (c >= n_.k) continue;
      float sum = small_.whole[c] * small_.crossing[c];
#pragma unroll
      for (int warp = 0; warp < 4; ++warp) sum += small_.at_end[warp][c];
#pragma unroll 8
      for (int r = kPanel - 1; r >= first + kEight; --r) sum += Sums()[r * kStride + c];
#pragma unroll
      for (int r = first + kEight - 1; r >= first; --r) {
        sum += Sums()[r * kStride + c];
        if (r >= place.rows) continue;
        PutOrAdd(data_.dg_NGK.to, (row + int64_t{r} * n_.heads) * n_.k + c, sum, data_.dg_NGK.add);
      }
    }
  }

  int at_ = 0;
  uint32_t left_[4][4];
};

template <int kWidth>
__global__ void __launch_bounds__(kGradientThreads, 1)
    DeltaChannelGradientsOfWarpgroups(const __grid_constant__ DeltaGradients<bf16> data,
                                      const __grid_constant__ GradientMaps maps, int items) {
  DeltaChannelGradients<kWidth>(data, maps, items).Run();
}

}  // namespace

void LaunchChannelGradients(const Stream& stream, const DeltaGradients<bf16>& data, int items) {
  LaunchGradients(stream, data, items, [&]<int kWidth>(const auto& launch) {
    launch(DeltaChannelGradientsOfWarpgroups<kWidth>, DeltaChannelGradients<kWidth>::kBytes);
  });
}

}  // namespace lt2::cuda
