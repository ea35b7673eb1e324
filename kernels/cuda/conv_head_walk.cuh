// What the convolution of heads (conv_heads.cuh) stands on: how a head lies over a half warp, which
// heads and tokens a block takes, and the walk down the rows of a band of tokens.
#pragma once

#include "kernels/cuda/bulk_store.cuh"
#include "kernels/cuda/column_pass.cuh"
#include "kernels/cuda/conv_parts.cuh"
#include "kernels/cuda/tensor_map.h"

namespace lt2::cuda {

inline constexpr int kHeadTaps = 4, kHeadBack = 3;  // a token reads three rows beside its own
inline constexpr int kHeadWarps = 2, kHeadsOfBlock = 2 * kHeadWarps;
// A stage is kHeadTaps tokens. Two are on their way while one is worked on and results may still be
// leaving from the one before it.
inline constexpr int kHeadStages = 4, kHeadAhead = 2;

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
  static __device__ void Store(bf16* at, const Piece<n>& values) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      alignas(16) uint32_t word[kWords];
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        word[w] = Halves(values[2 * (u * kWords + w)], values[2 * (u * kWords + w) + 1]);
      }
      *reinterpret_cast<Unit*>(at + Offset(u * 2 * kWords)) = *reinterpret_cast<Unit*>(word);
    }
  }
};

// Which blocks a part has, in gridDim.x: tiles of kHeadsOfBlock heads side by side, in bands.
struct ConvHeadBands {
  unsigned first_block = 0, tiles = 0;
  int each = 0, count = 0;  // tokens of a band; bands
  int64_t first_sum = 0;    // in `partial`: [count, channels]
};

struct ConvHeadParts {
  CUtensorMap x_map[kConvParts], dy_map[kConvParts];  // boxes of two heads and a stage
  CUtensorMap out_map[kConvParts];                    // of y or dx
  ConvPart<bf16> part[kConvParts] = {};               // head_dim: 0 where nothing is normed
  ConvHeadBands bands[kConvParts];
  unsigned blocks = 0;
  int last = 0;  // token of all
  const int32_t* positions_N = nullptr;
  float eps = 0;
  int64_t columns = 0, sums = 0;
  float4* partial = nullptr;  // the backward's, of all taps

  // Parts have whole heads of `head_dim` channels.
  ConvHeadParts(const std::array<ConvPart<bf16>, kConvParts>& of, int head_dim, double norm_eps)
      : last(static_cast<int>(of[0].in.tokens) - 1),
        positions_N(of[0].in.positions_N),
        eps(static_cast<float>(norm_eps)) {
    for (int p = 0; p < kConvParts; ++p) {
      part[p] = of[p];
      part[p].first_column = columns;
      const auto map = [&](const bf16* x) {
        return RowsMap(x, of[p].in.tokens, of[p].in.channels, kHeadTaps, 2 * head_dim);
      };
      x_map[p] = map(of[p].in.x_NC);
      if (of[p].dy_NC != nullptr) dy_map[p] = map(of[p].dy_NC);
      const bf16* out = of[p].y_NC != nullptr ? of[p].y_NC : of[p].dx_NC;
      if (out != nullptr) out_map[p] = map(out);
      bands[p].tiles = Blocks(of[p].in.channels, int64_t{kHeadsOfBlock} * head_dim);
      columns += of[p].in.channels;
    }
  }
  // For at most `most` blocks of about the same work: a token of a head that is normed is
  // `normed_cost` times that of another, and each band is computed with `halo` tokens more.
  void LayOut(int64_t most, int halo, double normed_cost) {
    const auto cost = [&](int p) { return part[p].head_dim > 0 ? normed_cost : 1; };
    double work = 0;
    for (int p = 0; p < kConvParts; ++p) work += cost(p) * bands[p].tiles;
    const int64_t tokens = part[0].in.tokens;
    for (int p = 0; p < kConvParts; ++p) {
      ConvHeadBands& of = bands[p];
      const int64_t wanted =
          std::clamp<int64_t>(static_cast<int64_t>(static_cast<double>(most) * cost(p) / work), 1,
                              std::max<int64_t>(tokens / 32, 1));
      of.each =
          static_cast<int>(Blocks(tokens + wanted * halo, wanted * kHeadTaps) * kHeadTaps - halo);
      of.count = static_cast<int>(Blocks(tokens, of.each));
      of.first_block = blocks;
      of.first_sum = sums;
      blocks += of.count * of.tiles;
      sums += of.count * part[p].in.channels;
    }
  }
  __device__ int PartOfBlock() const {
    int p = 0;
    while (p + 1 < kConvParts && blockIdx.x >= bands[p + 1].first_block) ++p;
    return p;
  }
};

// Over 16 lanes.
__device__ inline float HalfWarpSum(float x) {
#pragma unroll
  for (int lane = 8; lane > 0; lane /= 2) x += __shfl_xor_sync(~0u, x, lane);
  return x;
}
// Of two numbers.
__device__ inline float2 HalfWarpSums(float a, float b) {
  const bool second = threadIdx.x & 8;
  float sum = (second ? b : a) + __shfl_xor_sync(~0u, second ? a : b, 8);
#pragma unroll
  for (int lane = 4; lane > 0; lane /= 2) sum += __shfl_xor_sync(~0u, sum, lane);
  const int first = threadIdx.x & 16;
  return make_float2(__shfl_sync(~0u, sum, first), __shfl_sync(~0u, sum, first | 8));
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
    alignas(128) bf16 rows[kHeadStages][kInputs][kHeadTaps][2 * kHeadDim];
    alignas(128) uint64_t barriers[kHeadStages];
  };

  const ConvHeadParts& parts;
  int p;                 // which part
  int band, begin, end;  // the band's tokens
  int channels, channel;
  bool active, wanted;                // wanted: results are
  int position_ahead, position_here;  // of a token of the stage that comes next, or that is here
  Slots& slots;
  uint32_t stages = 0;       // that have been read
  float w[kHeadTaps][n];     // w/c
  Piece<n> rows[kHeadTaps];  // of x: the row of the token in slot j and of the three before it

  __device__ HeadWalk(const ConvHeadParts& parts, int p, Slots* of_warp)
      : parts(parts),
        p(p),
        band(static_cast<int>((blockIdx.x - parts.bands[p].first_block) / parts.bands[p].tiles)),
        begin(band * parts.bands[p].each),
        end(min(begin + parts.bands[p].each, parts.last + 1)),
        channels(static_cast<int>(parts.part[p].in.channels)),
        slots(of_warp[threadIdx.x / 32]) {
    const ConvInput<bf16>& in = parts.part[p].in;
    const int tile =
        static_cast<int>((blockIdx.x - parts.bands[p].first_block) % parts.bands[p].tiles);
    channel = (tile * kHeadsOfBlock + static_cast<int>(threadIdx.x / 16)) * kHeadDim;
    active = channel < channels;
    channel = (active ? channel : 0) + Lanes::First();
    wanted = active && (kInputs == 1 || parts.part[p].dx_NC != nullptr);
    if (threadIdx.x % 32 == 0) {
      for (int s = 0; s < kHeadStages; ++s) InitBarrier(SharedAddress(&slots.barriers[s]), 1);
      PublishBarriers();
      const int stop = end + (kInputs > 1 ? kHeadBack : 0);
      for (int s = 0; s < kHeadAhead && begin + s * kHeadTaps < stop; ++s) {
        Copy(s, begin + s * kHeadTaps);
      }
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
  __device__ void Copy(uint32_t to, int token) {
    const uint32_t barrier = SharedAddress(&slots.barriers[to]);
    ArriveExpecting(barrier, sizeof(slots.rows[0]));
    CopyBox(SharedAddress(slots.rows[to][0]), parts.x_map[p], barrier, channel, token);
    if constexpr (kInputs > 1) {
      CopyBox(SharedAddress(slots.rows[to][1]), parts.dy_map[p], barrier, channel, token);
    }
  }
  // A stage's rows are there, of which this returns the lane's first; later ones begin to come
  // where others were, unless they begin at `stop` or behind.
  __device__ bf16* Await(int token, int stop) {
    const uint32_t stage = stages % kHeadStages;
    WaitForPhase(SharedAddress(&slots.barriers[stage]), stages / kHeadStages % 2);
    __syncwarp();
    const int next = token + kHeadAhead * kHeadTaps;
    if (threadIdx.x % 32 == 0 && next < stop) {
      CloseStores<1>();
      Copy((stages + kHeadAhead) % kHeadStages, next);
    }
    ++stages;
    return slots.rows[stage][0][0] + (threadIdx.x % 32 / 16 * kHeadDim + Lanes::First());
  }
  // Of the input's token j, where `here` is the first input's of token 0.
  static __device__ Piece<n> Slot(const bf16* here, int input, int j) {
    return Lanes::Load(here + (input * kHeadTaps + j) * 2 * kHeadDim);
  }
  // What the warp has left where its stage's first rows were goes to the rows from `token` on.
  __device__ void StoreStage(const bf16* here, int token) {
    PublishStores();
    __syncwarp();
    if (threadIdx.x % 32 == 0 && wanted) {
      StoreBox(parts.out_map[p], SharedAddress(here), channel, token);
    }
  }
  // Shared memory outlives its readers.
  __device__ void FinishStores() {
    if (threadIdx.x % 32 == 0) CloseStores<0>();
  }
  // Lane i has that of token i mod 4.
  __device__ int PositionAhead(int token) const {
    return parts.positions_N[min(token + static_cast<int>(threadIdx.x % kHeadTaps), parts.last)];
  }
  // Bit i: whether token i of the stage that begins at `first` is nearer than `near` to its
  // document's start. For one stage after the other.
  __device__ unsigned NearStart(int first, int near) {
    position_here = position_ahead;
    position_ahead = PositionAhead(first + kHeadTaps);
    return __ballot_sync(~0u, position_here < near);
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
