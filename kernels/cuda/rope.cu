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
__global__ void __launch_bounds__(256) Turn(RopeData<T> data) {
  extern __shared__ float2 turns[];
  const int64_t first = int64_t{blockIdx.x} * data.tokens_of_block;
  MakeTurns(data, first, turns);
  __syncthreads();
  const int pieces = data.half / n, of_token = data.heads * pieces;
  for (int item = threadIdx.x; item < data.tokens_of_block * of_token; item += 256) {
    const int token = item / of_token, head = item % of_token / pieces;
    const int pair = item % pieces * n;
    if (first + token >= data.tokens) break;
    const int64_t at = ((first + token) * data.heads + head) * 2 * data.half;
    const int64_t low = at + (kHalf ? pair : 2 * pair), high = low + (kHalf ? data.half : n);
    const Piece<n> x_low = Load<n>(data.x_NHD + low), x_high = Load<n>(data.x_NHD + high);
    const float2* turn = turns + token * data.half + pair;
    Piece<n> y_low, y_high;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      // Where elements alternate, pair i is elements 2i and 2i + 1 of the 2n.
      const int a = kHalf ? i : 2 * i, b = kHalf ? n + i : 2 * i + 1;
      const float x_a = a < n ? x_low[a % n] : x_high[a % n];
      const float x_b = b < n ? x_low[b % n] : x_high[b % n];
      const float turned_a = x_a * turn[i].x - x_b * turn[i].y;
      const float turned_b = x_a * turn[i].y + x_b * turn[i].x;
      (a < n ? y_low : y_high)[a % n] = turned_a;
      (b < n ? y_low : y_high)[b % n] = turned_b;
    }
    StoreOrAdd<n>(data.y_NHD + low, y_low, data.accumulate);
    StoreOrAdd<n>(data.y_NHD + high, y_high, data.accumulate);
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
