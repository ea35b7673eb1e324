// Chooses how: bf16 on tensor cores where head sizes allow, by warpgroups where there are such
// instructions, else one warp a row, plainly.
#include <cmath>

#include "kernels/attention.h"
#include "kernels/attention_workspace.h"
#include "kernels/cuda/attention_plain.cuh"
#include "kernels/cuda/attention_query_stats.cuh"
#include "kernels/cuda/attention_tensor_core.h"
#include "kernels/cuda/attention_tile.cuh"
#include "kernels/cuda/eight.cuh"
#include "kernels/cuda/scratch.h"
#include "kernels/cuda/warpgroup.cuh"

namespace lt2::cuda {
namespace {

// The plain kernels' view: row i of head h of q begins at (i H + h) D. Rows of keys are counted
// from the first query's token on: -before … tokens - before.
template <class T>
struct Plain {
  const T *q, *k, *v, *dout;
  const int32_t* positions;
  int64_t queries, before, tokens, H, G, D, E, window;
  int share;  // H / G
  float scale;

  __device__ const T* q_row(int64_t i, int64_t h) const { return q + (i * H + h) * D; }
  __device__ const T* do_row(int64_t i, int64_t h) const { return dout + (i * H + h) * E; }
  __device__ const T* k_row(int64_t j, int64_t g) const { return k + (j * G + g) * D; }
  __device__ const T* v_row(int64_t j, int64_t g) const { return v + (j * G + g) * E; }
  __device__ int64_t first_key(int64_t i) const {
    return i - min(int64_t{positions[i]}, window - 1);
  }
};

__device__ int64_t RowOfWarp() { return int64_t{blockIdx.x} * kPlainWarps + threadIdx.x / 32; }

template <class T>
__global__ void __launch_bounds__(kPlainThreads)
    PlainForward(Plain<T> in, T* o_NHE, float* lse_NH) {
  const int64_t i = RowOfWarp(), h = blockIdx.y, ih = i * in.H + h, g = blockIdx.y / in.share;
  if (i >= in.queries) return;
  const int lane = threadIdx.x % 32;
  float *weights = WarpShared(in.E), *o = weights + 32;
  float m = -INFINITY, l = 0;
  for (int64_t key = in.first_key(i); key <= i; key += 32) {
    const int64_t j = key + lane;
    const float s = j <= i ? in.scale * Dot(in.q_row(i, h), in.k_row(j, g), in.D) : -INFINITY;
    const float most = fmaxf(m, WarpMax(s)), shrink = expf(m - most), p = expf(s - most);
    l = l * shrink + WarpSum(p);
    m = most;
    AddWeighted(p, static_cast<int>(min(int64_t{32}, i + 1 - key)), in.v_row(key, g), in.G * in.E,
                in.E, shrink, weights, o);
  }
  for (int64_t e = lane; e < in.E; e += 32) Put(o_NHE, ih * in.E + e, o[e] / l);
  if (lane == 0) lse_NH[ih] = m + logf(l);
}

template <class T>
__global__ void __launch_bounds__(kPlainThreads)
    PlainQueryGradient(Plain<T> in, const float2* stats_HN, T* dq_NHD, bool add) {
  const int64_t i = RowOfWarp(), h = blockIdx.y, ih = i * in.H + h, g = blockIdx.y / in.share;
  if (i >= in.queries) return;
  const int lane = threadIdx.x % 32;
  float *weights = WarpShared(in.D), *dq = weights + 32;
  const float2 stats = stats_HN[h * in.queries + i];
  for (int64_t key = in.first_key(i); key <= i; key += 32) {
    const int64_t j = key + lane;
    float ds = 0;
    if (j <= i) {
      const float p = expf(in.scale * Dot(in.q_row(i, h), in.k_row(j, g), in.D) - stats.x);
      ds = p * (Dot(in.do_row(i, h), in.v_row(j, g), in.E) - stats.y);
    }
    AddWeighted(ds, static_cast<int>(min(int64_t{32}, i + 1 - key)), in.k_row(key, g), in.G * in.D,
                in.D, 1, weights, dq);
  }
  for (int64_t d = lane; d < in.D; d += 32) PutOrAdd(dq_NHD, ih * in.D + d, in.scale * dq[d], add);
}

template <class T>
__global__ void __launch_bounds__(kPlainThreads)
    PlainKeyGradients(Plain<T> in, const float2* stats_HN, T* dk_NGD, T* dv_NGE, bool add_dk,
                      bool add_dv) {
  const int64_t row = RowOfWarp(), j = row - in.before, g = blockIdx.y, jg = row * in.G + g;
  if (row >= in.tokens) return;
  const int lane = threadIdx.x % 32;
  float *weights = WarpShared(in.D + in.E), *dk = weights + 32, *dv = dk + in.D;
  for (int64_t h = g * in.share; h < (g + 1) * in.share; ++h) {
    for (int64_t query = max(j, int64_t{0});; query += 32) {
      const int64_t i = query + lane;
      const bool sees = i < in.queries && i - j < in.window && i - j <= in.positions[i];
      const int queries = __popc(__ballot_sync(~0u, sees));  // the first ones
      if (queries == 0) break;
      float p = 0, ds = 0;
      if (sees) {
        const float2 stats = stats_HN[h * in.queries + i];
        p = expf(in.scale * Dot(in.q_row(i, h), in.k_row(j, g), in.D) - stats.x);
        ds = p * (Dot(in.do_row(i, h), in.v_row(j, g), in.E) - stats.y);
      }
      AddWeighted(p, queries, in.do_row(query, h), in.H * in.E, in.E, 1, weights, dv);
      AddWeighted(ds, queries, in.q_row(query, h), in.H * in.D, in.D, 1, weights, dk);
    }
  }
  for (int64_t d = lane; d < in.D && dk_NGD != nullptr; d += 32) {
    PutOrAdd(dk_NGD, jg * in.D + d, in.scale * dk[d], add_dk);
  }
  for (int64_t e = lane; e < in.E && dv_NGE != nullptr; e += 32) {
    PutOrAdd(dv_NGE, jg * in.E + e, dv[e], add_dv);
  }
}

template <class T, class Args>
Plain<T> PlainOf(const Args& args, const Tensor& dout) {
  const int64_t window = args.options.window, before = args.documents.query_begin();
  return {.q = Data<T>(args.q_NHD),
          .k = Data<T>(args.k_NGD) + before * args.k_NGD.dim(1) * args.k_NGD.dim(2),
          .v = Data<T>(args.v_NGE) + before * args.v_NGE.dim(1) * args.v_NGE.dim(2),
          .dout = DataOrNull<T>(dout),
          .positions = Data<int32_t>(args.documents.positions()) + before,
          .queries = args.q_NHD.dim(0),
          .before = before,
          .tokens = args.k_NGD.dim(0),
          .H = args.q_NHD.dim(1),
          .G = args.k_NGD.dim(1),
          .D = args.q_NHD.dim(2),
          .E = args.v_NGE.dim(2),
          .window = window > 0 ? window : int64_t{kNoWindow},
          .share = static_cast<int>(args.q_NHD.dim(1) / args.k_NGD.dim(1)),
          .scale = static_cast<float>(args.options.scale)};
}

dim3 GridOf(int64_t rows, int64_t heads) {
  return dim3(Blocks(rows, kPlainWarps), static_cast<unsigned>(heads));
}

template <class T>
void RunPlainForward(const Stream& stream, const AttentionForwardArgs& args) {
  const Plain<T> in = PlainOf<T>(args, {});
  PlainForward<<<GridOf(in.queries, in.H), kPlainThreads, PlainSharedBytes(in.E), Handle(stream)>>>(
      in, Data<T>(args.o_NHE), Data<float>(args.lse_NH));
  CheckLaunch("attention");
}

template <class T>
void RunPlainBackward(const Stream& stream, const AttentionBackwardArgs& args,
                      const float2* stats_HN) {
  const Plain<T> in = PlainOf<T>(args, args.do_NHE);
  if (args.dq_NHD.defined()) {
    PlainQueryGradient<<<GridOf(in.queries, in.H), kPlainThreads, PlainSharedBytes(in.D),
                         Handle(stream)>>>(in, stats_HN, Data<T>(args.dq_NHD), args.accumulate_dq);
    CheckLaunch("attention backward");
  }
  if (args.dk_NGD.defined() || args.dv_NGE.defined()) {
    PlainKeyGradients<<<GridOf(in.tokens, in.G), kPlainThreads, PlainSharedBytes(in.D + in.E),
                        Handle(stream)>>>(in, stats_HN, DataOrNull<T>(args.dk_NGD),
                                          DataOrNull<T>(args.dv_NGE), args.accumulate_dk,
                                          args.accumulate_dv);
    CheckLaunch("attention backward");
  }
}

bool OnTensorCores(std::initializer_list<const Tensor*> all, const AttentionOptions& options) {
  for (const Tensor* x : all) {
    if (!x->defined()) continue;
    if (x->dtype() != DType::kBF16 || !InEights(*x) || x->dim(2) > 256) return false;
  }
  return options.scale > 0;
}

bool OfWarpgroups(const Tensor& q, const Tensor& v) {
  return std::max(q.dim(2), v.dim(2)) <= AttentionWorkspace::kMostWidth && HasHopper();
}

template <class T>
void RunBackward(const Stream& stream, const AttentionBackwardArgs& args) {
  const bool fast = OnTensorCores({&args.q_NHD, &args.k_NGD, &args.v_NGE, &args.do_NHE,
                                   &args.dq_NHD, &args.dk_NGD, &args.dv_NGE},
                                  args.options);
  if (fast && HasHopper() && AttentionWorkspace::Fits(args)) {
    return WarpgroupAttentionBackward(stream, args);
  }
  const int64_t N = args.q_NHD.dim(0), H = args.q_NHD.dim(1);
  float2* stats_HN = ScratchFor<float2>(stream, N * H);
  RunQueryStats<T>(stream, args, fast ? kLog2E : 1.0f, stats_HN, N, /*twice=*/false, {});
  if (fast) return TensorCoreAttentionBackward(stream, args, stats_HN);
  RunPlainBackward<T>(stream, args, stats_HN);
}

}  // namespace

void AttentionForward(Stream& stream, const AttentionForwardArgs& args) {
  if (args.q_NHD.size() == 0) return;
  if (OnTensorCores({&args.q_NHD, &args.k_NGD, &args.v_NGE, &args.o_NHE}, args.options)) {
    if (OfWarpgroups(args.q_NHD, args.v_NGE)) return WarpgroupAttentionForward(stream, args);
    return TensorCoreAttentionForward(stream, args);
  }
  DispatchType("attention", args.q_NHD.dtype(),
               [&]<class T>() { RunPlainForward<T>(stream, args); });
}

void AttentionBackward(Stream& stream, const AttentionBackwardArgs& args) {
  if (args.q_NHD.size() == 0) return;
  DispatchType("attention", args.q_NHD.dtype(), [&]<class T>() { RunBackward<T>(stream, args); });
}

}  // namespace lt2::cuda
