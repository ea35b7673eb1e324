// What the convolution of heads (conv_heads.cuh) stands on: how a head lies over a half warp, which
// heads and tokens a block takes, and the walk down the rows of a band of tokens.
#pragma once

#include "kernels/cuda/bulk_copy.cuh"
#include "kernels/cuda/column_pass.cuh"
#include "kernels/cuda/conv_parts.cuh"
#include "kernels/cuda/tensor_map.h"

namespace lt2::cuda {

inline constexpr int kHeadTaps = 4, kHeadBack = 3;  // a token reads three rows beside its own
inline constexpr int kHeadWarps = 2, kHeadsOfBlock = 2 * kHeadWarps;
inline constexpr int kHeadStages = 2, kHeadStage = 2 * kHeadTaps;  // a stage's tokens

// A head in units of kWords · 2 channels a lane, one after the other.
template <int kUnits, int kWords>
struct HeadLanes {
  static constexpr int n = 2 * kUnits * kWords, kHeadDim = 16 * n;  // n: channels of a lane
  using Unit =
      std::conditional_t<kWords == 1, uint32_t, std::conditional_t<kWords == 2, uint2, uint4>>;

  // Channel i of a lane is its head's channel First() + Offset(i).
  static __device__ int First() { return static_cast<int>(threadIdx.x % 16) * 2 * kWords; }
  static __device__ constexpr int Offset(int i) {
    return i / (2 * kWords) * 32 * kWords + i % (2 * kWords);
  }
  // `at` is where the lane's first channel is.
  static __device__ Piece<n> Load(const bf16* at) {
    Piece<n> values;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      alignas(16) uint32_t word[kWords];
      *reinterpret_cast<Unit*>(word) = *reinterpret_cast<const Unit*>(at + Offset(u * 2 * kWords));
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        values[2 * (u * kWords + w)] = LowerHalf(word[w]);
        values[2 * (u * kWords + w) + 1] = UpperHalf(word[w]);
      }
    }
    return values;
  }
  // Where `wanted`, and without a branch, so that other tokens' work goes on around it.
  static __device__ void Store(bf16* at, const Piece<n>& values, bool wanted) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      uint32_t word[kWords];
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        word[w] = Halves(values[2 * (u * kWords + w)], values[2 * (u * kWords + w) + 1]);
      }
      StoreWhere(wanted, at + Offset(u * 2 * kWords), word);
    }
  }

 private:
  static __device__ void StoreWhere(bool wanted, bf16* at, const uint32_t (&word)[kWords]) {
    const int where = wanted;
    if constexpr (kWords == 1) {
      asm volatile("{.reg .pred p; setp.ne.s32 p, %0, 0; @p st.global.u32 [%1], %2;}" ::"r"(where),
                   "l"(at), "r"(word[0])
                   : "memory");
    } else if constexpr (kWords == 2) {
      asm volatile(
          "{.reg .pred p; setp.ne.s32 p, %0, 0; @p st.global.v2.u32 [%1], {%2, %3};}" ::"r"(where),
          "l"(at), "r"(word[0]), "r"(word[1])
          : "memory");
    } else {
      asm volatile(
          "{.reg .pred p; setp.ne.s32 p, %0, 0; @p st.global.v4.u32 [%1], {%2, %3, %4, %5};}" ::"r"(
              where),
          "l"(at), "r"(word[0]), "r"(word[1]), "r"(word[2]), "r"(word[3])
          : "memory");
    }
  }
};

struct ConvHeadParts {
  CUtensorMap x_map[kConvParts], dy_map[kConvParts];  // boxes of two heads and a stage
  ConvPart<bf16> part[kConvParts] = {};               // head_dim: 0 where nothing is normed
  unsigned tiles = 0;                                 // of kHeadsOfBlock heads, in gridDim.x
  int each = 0;                                       // tokens of a band, a multiple of kHeadTaps
  int last = 0;                                       // token of all
  const int32_t* positions_N = nullptr;
  float eps = 0;
  int64_t columns = 0;
  float4* partial = nullptr;  // the backward's [bands, columns], of all taps

  // Parts have whole heads of `head_dim` channels.
  ConvHeadParts(const std::array<ConvPart<bf16>, kConvParts>& of, int head_dim, double norm_eps)
      : last(static_cast<int>(of[0].in.tokens) - 1),
        positions_N(of[0].in.positions_N),
        eps(static_cast<float>(norm_eps)) {
    for (int p = 0; p < kConvParts; ++p) {
      part[p] = of[p];
      part[p].first_tile = tiles;
      part[p].first_column = columns;
      const auto map = [&](const bf16* x) {
        return RowsMap(x, of[p].in.tokens, of[p].in.channels, kHeadStage, 2 * head_dim);
      };
      x_map[p] = map(of[p].in.x_NC);
      if (of[p].dy_NC != nullptr) dy_map[p] = map(of[p].dy_NC);
      tiles += Blocks(of[p].in.channels, int64_t{kHeadsOfBlock} * head_dim);
      columns += of[p].in.channels;
    }
  }
  // Tiles by bands: one wave of `together` blocks a processor.
  dim3 Grid(int together) {
    const int64_t tokens = part[0].in.tokens;
    const int64_t bands = std::clamp<int64_t>(int64_t{132} * together / tiles, 1,
                                              std::max<int64_t>(tokens / (4 * kHeadStage), 1));
    each = static_cast<int>(Blocks(tokens, bands * kHeadTaps)) * kHeadTaps;
    return dim3(tiles, Blocks(tokens, each));
  }
  __device__ int PartOfBlock() const {
    int p = 0;
    while (p + 1 < kConvParts && blockIdx.x >= part[p + 1].first_tile) ++p;
    return p;
  }
};

// Over 16 lanes.
__device__ inline float HalfWarpSum(float x) {
#pragma unroll
  for (int lane = 8; lane > 0; lane /= 2) x += __shfl_xor_sync(~0u, x, lane);
  return x;
}
// The hardware's approximation.
__device__ inline float FastInverseRoot(float x) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// A thread's walk down a band. kInputs: x, or x and dy. Idle half warps compute with what there is
// and keep it to themselves.
template <class Lanes, int kInputs>
struct HeadWalk {
  static constexpr int n = Lanes::n, kHeadDim = Lanes::kHeadDim;
  static constexpr float kScale = -0.6931471805599453f, kInverse = -1.4426950408889634f;  // c, 1/c
  // A warp's: rows of two heads, and what counts their bytes.
  struct Slots {
    alignas(128) bf16 rows[kHeadStages][kInputs][kHeadStage][2 * kHeadDim];
    alignas(128) uint64_t barriers[kHeadStages];
  };

  const ConvHeadParts& parts;
  int p;           // which part
  int begin, end;  // the band's tokens
  int channels, channel;
  bool active;
  int position_ahead;
  Slots& slots;
  uint32_t stages = 0;       // that have been read
  float w[kHeadTaps][n];     // w/c
  Piece<n> rows[kHeadTaps];  // of x: the row of the token in slot j and of the three before it

  __device__ HeadWalk(const ConvHeadParts& parts, int p, Slots* of_warp)
      : parts(parts),
        p(p),
        begin(static_cast<int>(blockIdx.y) * parts.each),
        end(min(begin + parts.each, parts.last + 1)),
        channels(static_cast<int>(parts.part[p].in.channels)),
        slots(of_warp[threadIdx.x / 32]) {
    const ConvInput<bf16>& in = parts.part[p].in;
    const int tile = static_cast<int>(blockIdx.x - parts.part[p].first_tile);
    channel = (tile * kHeadsOfBlock + static_cast<int>(threadIdx.x / 16)) * kHeadDim;
    active = channel < channels;
    channel = (active ? channel : 0) + Lanes::First();
    if (threadIdx.x % 32 == 0) {
      for (int s = 0; s < kHeadStages; ++s) InitBarrier(SharedAddress(&slots.barriers[s]), 1);
      PublishBarriers();
      Copy(0, begin);
    }
    __syncwarp();
    const int position = parts.positions_N[begin];
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const float4 taps = reinterpret_cast<const float4*>(in.w_CW)[channel + Lanes::Offset(i)];
      w[0][i] = taps.x * kInverse, w[1][i] = taps.y * kInverse;
      w[2][i] = taps.z * kInverse, w[3][i] = taps.w * kInverse;
    }
#pragma unroll
    for (int back = 1; back <= kHeadBack; ++back) {
      const Piece<n> row = Lanes::Load(RowOf(in.x_NC + channel, max(begin - back, 0)));
#pragma unroll
      for (int i = 0; i < n; ++i) rows[kHeadTaps - back][i] = position >= back ? row[i] : 0;
    }
    position_ahead = PositionAhead(begin);
  }
  template <class T>
  __device__ T* RowOf(T* x, int token) const {
    const auto bytes = reinterpret_cast<uintptr_t>(x);
    return reinterpret_cast<T*>(bytes + static_cast<uint64_t>(static_cast<uint32_t>(token)) *
                                            static_cast<uint32_t>(channels * sizeof(T)));
  }
  // By the first lane: a stage's rows, zeros behind the last token. Its `channel` is the warp's
  // first, or 0 where both heads are idle.
  __device__ void Copy(uint32_t stage, int token) {
    const uint32_t barrier = SharedAddress(&slots.barriers[stage]);
    ArriveExpecting(barrier, sizeof(slots.rows[0]));
    CopyBox(SharedAddress(slots.rows[stage][0]), parts.x_map[p], barrier, channel, token);
    if constexpr (kInputs > 1) {
      CopyBox(SharedAddress(slots.rows[stage][1]), parts.dy_map[p], barrier, channel, token);
    }
  }
  // A stage's rows are there, of which this returns the lane's first; the next begin to come where
  // the last were, unless they begin at `stop` or behind.
  __device__ const bf16* Await(int token, int stop) {
    const uint32_t stage = stages % kHeadStages;
    WaitForPhase(SharedAddress(&slots.barriers[stage]), stages / kHeadStages % 2);
    __syncwarp();
    if (threadIdx.x % 32 == 0 && token + kHeadStage < stop) Copy(stage ^ 1, token + kHeadStage);
    ++stages;
    return slots.rows[stage][0][0] + (threadIdx.x % 32 / 16 * kHeadDim + Lanes::First());
  }
  // Of the input's token j, where `here` is the first input's of token 0.
  static __device__ Piece<n> Slot(const bf16* here, int input, int j) {
    return Lanes::Load(here + (input * kHeadStage + j) * 2 * kHeadDim);
  }
  __device__ int PositionAhead(int token) const {
    return parts.positions_N[min(token + static_cast<int>(threadIdx.x % 32), parts.last)];
  }
  // Bit i: whether token `first` + i is nearer than `near` to its document's start. For `first` one
  // stage after the other.
  __device__ unsigned NearStart(int first, int near) {
    const unsigned bits = __ballot_sync(~0u, position_ahead < near);
    position_ahead = PositionAhead(first + kHeadStage);
    return bits;
  }
  __device__ void BeginDocument(int j) {
#pragma unroll
    for (int back = 1; back <= kHeadBack; ++back) rows[(j + back) % kHeadTaps] = {};
  }
  // u/c of the token in slot j.
  __device__ Piece<n> PreActivation(int j) const {
    Piece<n> u;
#pragma unroll
    for (int i = 0; i < n; ++i) u[i] = w[0][i] * rows[(j + 1) % kHeadTaps][i];
#pragma unroll
    for (int t = 1; t < kHeadTaps; ++t) {
#pragma unroll
      for (int i = 0; i < n; ++i) u[i] += w[t][i] * rows[(j + 1 + t) % kHeadTaps][i];
    }
    return u;
  }
  // c σ(u) of u/c.
  static __device__ float ScaledSigmoid(float u) {
    return FastReciprocal(fmaf(Exp2(u), kInverse, kInverse));
  }
};

}  // namespace lt2::cuda
