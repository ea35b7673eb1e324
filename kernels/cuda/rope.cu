#include <algorithm>
#include <cmath>

#include "kernels/cuda/piece.cuh"
#include "kernels/rope.h"

namespace lt2::cuda {
namespace {

template <class T>
struct RopeData {
  int64_t tokens;
  int heads, half, tokens_of_block;
  const T* x_NHD;
  const int32_t* positions_N;
  T* y_NHD;
  double octaves;  // frequency i is 2^(-octaves i) turns of 2π
  bool inverse, accumulate;
};

// A block makes the sines of its tokens once for all heads: [tokens_of_block, half]. The angle is
// reduced to half a turn in double.
template <class T>
__device__ void MakeTurns(const RopeData<T>& data, int64_t first, float2* turns) {
  constexpr double kTurnsOfRadian = 0.15915494309189533577;
  for (int i = threadIdx.x; i < data.tokens_of_block * data.half; i += 256) {
    const int64_t token = min(first + i / data.half, data.tokens - 1);
    const double frequency = exp2(-data.octaves * (i % data.half)) * kTurnsOfRadian;
    const double angle = data.positions_N[token] * frequency;
    float sine, cosine;
    sincospif(2 * static_cast<float>(angle - rint(angle)), &sine, &cosine);
    turns[i] = make_float2(cosine, data.inverse ? -sine : sine);
  }
}

// n pairs at a time: kHalf reads elements i … and i + D/2 …, else 2i … and 2i + n ….
template <bool kHalf, int n, class T>
struct Pairs {
  bool there;
  int turn;  // of the first pair, in the block's
  int64_t low, high;
  Packed<T, n> x_low, x_high;

  // Where there is no such item, the last one again: loads have no conditions.
  __device__ void Load(const RopeData<T>& data, int64_t first, int item) {
    const int pieces = data.half / n, of_token = data.heads * pieces;
    const int tokens = static_cast<int>(min(data.tokens - first, int64_t{data.tokens_of_block}));
    there = item < tokens * of_token;
    item = min(item, tokens * of_token - 1);
    const int token = item / of_token, head = item % of_token / pieces;
    const int pair = item % pieces * n;
    turn = token * data.half + pair;
    const int64_t at = ((first + token) * data.heads + head) * 2 * data.half;
    low = at + (kHalf ? pair : 2 * pair), high = low + (kHalf ? data.half : n);
    x_low = LoadPacked<n>(data.x_NHD + low), x_high = LoadPacked<n>(data.x_NHD + high);
  }
  __device__ void Store(const RopeData<T>& data, const float2* turns) const {
    if (!there) return;
    Piece<n> y_low, y_high;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      // Where elements alternate, pair i is elements 2i and 2i + 1 of the 2n.
      const int a = kHalf ? i : 2 * i, b = kHalf ? n + i : 2 * i + 1;
      const float x_a = a < n ? x_low[a % n] : x_high[a % n];
      const float x_b = b < n ? x_low[b % n] : x_high[b % n];
      const float2 by = turns[turn + i];
      (a < n ? y_low : y_high)[a % n] = x_a * by.x - x_b * by.y;
      (b < n ? y_low : y_high)[b % n] = x_a * by.y + x_b * by.x;
    }
    StoreOrAdd<n>(data.y_NHD + low, y_low, data.accumulate);
    StoreOrAdd<n>(data.y_NHD + high, y_high, data.accumulate);
  }
};

// The first loads are under way while sines are made.
template <bool kHalf, int n, class T>
__global__ void __launch_bounds__(256) Turn(RopeData<T> data) {
  extern __shared__ float2 turns[];
  constexpr int kAtOnce = 2;
  const int64_t first = int64_t{blockIdx.x} * data.tokens_of_block;
  const int items = data.tokens_of_block * data.heads * (data.half / n);
  for (int item = threadIdx.x; item - threadIdx.x < items; item += kAtOnce * 256) {
    Pairs<kHalf, n, T> pairs[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) pairs[j].Load(data, first, item + j * 256);
    if (item == threadIdx.x) {
      MakeTurns(data, first, turns);
      __syncthreads();
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) pairs[j].Store(data, turns);
  }
}

template <class T>
void Run(const Stream& stream, const RopeArgs& args) {
  const int64_t heads = args.x.dim(1), half = args.x.dim(2) / 2;
  RopeData<T> data{.tokens = args.x.dim(0),
                   .heads = static_cast<int>(heads),
                   .half = static_cast<int>(half),
                   .x_NHD = Data<T>(args.x),
                   .positions_N = Data<int32_t>(args.positions),
                   .y_NHD = Data<T>(args.y),
                   .octaves = std::log2(args.options.theta) / static_cast<double>(half),
                   .inverse = args.inverse,
                   .accumulate = args.accumulate};
  if (args.x.size() == 0) return;
  DispatchPieces<T>(half, {args.x, args.y}, [&]<int n>() {
    // Two pieces a thread, or a sine a thread where heads are few; 32 KiB of sines at most.
    const int64_t enough = std::max(Blocks(512, heads * half / n), Blocks(256, half));
    const int64_t tokens = std::clamp<int64_t>(enough, 1, std::max<int64_t>(4096 / half, 1));
    data.tokens_of_block = static_cast<int>(tokens);
    const size_t bytes = tokens * half * sizeof(float2);
    const unsigned blocks = Blocks(data.tokens, tokens);
    if (args.options.style == RopeStyle::kHalf) {
      Turn<true, n><<<blocks, 256, bytes, Handle(stream)>>>(data);
    } else {
      Turn<false, n><<<blocks, 256, bytes, Handle(stream)>>>(data);
    }
  });
  CheckLaunch("rope");
}

}  // namespace

void Rope(Stream& stream, const RopeArgs& args) {
  DispatchType("rope", args.x.dtype(), [&]<class T>() { Run<T>(stream, args); });
}

}  // namespace lt2::cuda
