// The keys of a sequence are split over blocks where sequences and heads are few; a second kernel
// merges what the blocks found.
#include <algorithm>
#include <cmath>

#include "kernels/attention_step.h"
#include "kernels/cuda/attention_plain.cuh"
#include "kernels/cuda/eight.cuh"
#include "kernels/cuda/scratch.h"

namespace lt2::cuda {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps;

template <class T>
struct Step {
  const T *q, *k, *v;
  const int32_t* lengths;
  int64_t B, H, G, S, D, E, window;
  int share;  // H / G
  float scale;

  __device__ const T* k_row(int64_t b, int64_t s, int64_t g) const {
    return k + ((b * S + s) * G + g) * D;
  }
  __device__ const T* v_row(int64_t b, int64_t s, int64_t g) const {
    return v + ((b * S + s) * G + g) * E;
  }
  // What the query sees: keys [first, length).
  __device__ int64_t length(int64_t b) const {
    if (lengths[b] < 0 || lengths[b] > S) __trap();
    return lengths[b];
  }
  __device__ int64_t first(int64_t b) const { return max(int64_t{0}, length(b) - window); }
};

// parts [B, H, pieces, E + 2]: sum exp(s - m) v over the piece's keys, then m and sum exp(s - m).
// A team of kLanes lanes takes a key at a time, each lane eight elements of it.
template <class T, int kLanes>
__global__ void __launch_bounds__(kThreads) AttendPiece(Step<T> in, float* parts) {
  float* merged = reinterpret_cast<float*>(DynamicShared());  // [kWarps, E + 2]
  const int64_t b = blockIdx.z, h = blockIdx.y, g = blockIdx.y / in.share;
  const int64_t length = in.length(b), first = in.first(b);
  const int64_t each = (length - first + gridDim.x - 1) / gridDim.x;
  const int64_t begin = first + blockIdx.x * each, end = min(length, begin + each);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int member = lane % kLanes, team = lane / kLanes, column = 8 * member;

  float q[8] = {}, o[8] = {}, m = -INFINITY, l = 0;
  if (column < in.D) {
    const Eight<T> of_q(in.q + (b * in.H + h) * in.D + column);
#pragma unroll
    for (int i = 0; i < 8; ++i) q[i] = in.scale * of_q.value[i];
  }
  for (int64_t key = begin + 32 * warp; key < end; key += 32 * kWarps) {
    float s = -INFINITY;  // of key + lane
#pragma unroll 8
    for (int n = 0; n < kLanes; ++n) {
      const int64_t j = key + team * kLanes + n;
      float dot = 0;
      if (j < end && column < in.D) {
        const Eight<T> of_k(in.k_row(b, j, g) + column);
#pragma unroll
        for (int i = 0; i < 8; ++i) dot += q[i] * of_k.value[i];
      }
#pragma unroll
      for (int other = kLanes / 2; other > 0; other /= 2) {
        dot += __shfl_xor_sync(~0u, dot, other);
      }
      if (member == n && j < end) s = dot;
    }
    const float most = fmaxf(m, WarpMax(s)), shrink = expf(m - most), p = expf(s - most);
    l = l * shrink + WarpSum(p);
    m = most;
#pragma unroll
    for (int i = 0; i < 8; ++i) o[i] *= shrink;
#pragma unroll 8
    for (int n = 0; n < kLanes; ++n) {
      const int64_t j = key + team * kLanes + n;
      const float weight = __shfl_sync(~0u, p, team * kLanes + n);
      if (j < end && column < in.E) {
        const Eight<T> of_v(in.v_row(b, j, g) + column);
#pragma unroll
        for (int i = 0; i < 8; ++i) o[i] += weight * of_v.value[i];
      }
    }
  }
  // Teams have the same m; warps do not.
  float* own = merged + warp * (in.E + 2);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
#pragma unroll
    for (int other = kLanes; other < 32; other *= 2) o[i] += __shfl_xor_sync(~0u, o[i], other);
    if (team == 0 && column < in.E) own[column + i] = o[i];
  }
  if (lane == 0) own[in.E] = m, own[in.E + 1] = l;
  __syncthreads();
  float most = -INFINITY;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) most = fmaxf(most, merged[w * (in.E + 2) + in.E]);
  float* to = parts + ((b * in.H + h) * gridDim.x + blockIdx.x) * (in.E + 2);
  for (int64_t e = threadIdx.x; e < in.E + 2; e += kThreads) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float* of_w = merged + w * (in.E + 2);
      if (of_w[in.E] > -INFINITY) sum += of_w[e] * expf(of_w[in.E] - most);
    }
    to[e] = e == in.E ? most : sum;
  }
}

// A block takes a head: o = the merged pieces, zeros where nothing was seen.
template <class T>
__global__ void __launch_bounds__(kThreads)
    MergePieces(int64_t E, int pieces, const float* parts, T* o_BHE) {
  const float* of_head = parts + blockIdx.x * pieces * (E + 2);
  float most = -INFINITY, l = 0;
  for (int n = 0; n < pieces; ++n) most = fmaxf(most, of_head[n * (E + 2) + E]);
  for (int n = 0; n < pieces && most > -INFINITY; ++n) {
    l += of_head[n * (E + 2) + E + 1] * expf(of_head[n * (E + 2) + E] - most);
  }
  for (int64_t e = threadIdx.x; e < E; e += kThreads) {
    float o = 0;
    for (int n = 0; n < pieces && most > -INFINITY; ++n) {
      o += of_head[n * (E + 2) + e] * expf(of_head[n * (E + 2) + E] - most);
    }
    Put(o_BHE, blockIdx.x * E + e, l > 0 ? o / l : 0);
  }
}

template <class T>
__global__ void __launch_bounds__(kPlainThreads) PlainStep(Step<T> in, T* o_BHE) {
  const int64_t b = int64_t{blockIdx.x} * kPlainWarps + threadIdx.x / 32;
  const int64_t h = blockIdx.y, g = blockIdx.y / in.share, row = b * in.H + h;
  if (b >= in.B) return;
  const int lane = threadIdx.x % 32;
  float *weights = WarpShared(in.E), *o = weights + 32;
  float m = -INFINITY, l = 0;
  const int64_t length = in.length(b);
  for (int64_t key = in.first(b); key < length; key += 32) {
    const int64_t j = key + lane;
    const T* q = in.q + row * in.D;
    const float s = j < length ? in.scale * Dot(q, in.k_row(b, j, g), in.D) : -INFINITY;
    const float most = fmaxf(m, WarpMax(s)), shrink = expf(m - most), p = expf(s - most);
    l = l * shrink + WarpSum(p);
    m = most;
    AddWeighted(p, static_cast<int>(min(int64_t{32}, length - key)), in.v_row(b, key, g),
                in.G * in.E, in.E, shrink, weights, o);
  }
  for (int64_t e = lane; e < in.E; e += 32) Put(o_BHE, row * in.E + e, l > 0 ? o[e] / l : 0);
}

template <class T, int kLanes>
void RunPieces(const Stream& stream, const Step<T>& in, T* o_BHE) {
  constexpr int64_t kEnough = 1024, kLeastKeys = 128;  // blocks; keys of one
  const int64_t most = (in.S + kLeastKeys - 1) / kLeastKeys;
  const int64_t pieces =
      std::clamp<int64_t>(kEnough / (in.B * in.H), 1, std::max<int64_t>(most, 1));
  float* parts = ScratchFor<float>(stream, in.B * in.H * pieces * (in.E + 2));
  const dim3 grid(pieces, in.H, in.B);
  const int shared = static_cast<int>(kWarps * (in.E + 2) * sizeof(float));
  AttendPiece<T, kLanes><<<grid, kThreads, shared, Handle(stream)>>>(in, parts);
  CheckLaunch("attention_step");
  MergePieces<<<in.B * in.H, kThreads, 0, Handle(stream)>>>(in.E, static_cast<int>(pieces), parts,
                                                            o_BHE);
  CheckLaunch("attention_step");
}

template <class T>
void Run(const Stream& stream, const AttentionStepArgs& args) {
  const int64_t window = args.options.window, H = args.q_BHD.dim(1), G = args.k_BSGD.dim(2);
  const Step<T> in{.q = Data<T>(args.q_BHD),
                   .k = Data<T>(args.k_BSGD),
                   .v = Data<T>(args.v_BSGE),
                   .lengths = Data<int32_t>(args.lengths_B),
                   .B = args.q_BHD.dim(0),
                   .H = H,
                   .G = G,
                   .S = args.k_BSGD.dim(1),
                   .D = args.q_BHD.dim(2),
                   .E = args.v_BSGE.dim(3),
                   .window = window > 0 ? window : args.k_BSGD.dim(1),
                   .share = static_cast<int>(H / G),
                   .scale = static_cast<float>(args.options.scale)};
  if (in.B * in.H == 0) return;
  T* o = Data<T>(args.o_BHE);
  const int64_t widest = std::max(in.D, in.E);
  if (widest > 256 || !InEights(args.q_BHD) || !InEights(args.k_BSGD) || !InEights(args.v_BSGE)) {
    const dim3 grid(Blocks(in.B, kPlainWarps), in.H);
    PlainStep<<<grid, kPlainThreads, PlainSharedBytes(in.E), Handle(stream)>>>(in, o);
    return CheckLaunch("attention_step");
  }
  if (widest <= 64) return RunPieces<T, 8>(stream, in, o);
  if (widest <= 128) return RunPieces<T, 16>(stream, in, o);
  RunPieces<T, 32>(stream, in, o);
}

}  // namespace

void AttentionStep(Stream& stream, const AttentionStepArgs& args) {
  DispatchType("attention_step", args.q_BHD.dtype(), [&]<class T>() { Run<T>(stream, args); });
}

}  // namespace lt2::cuda
