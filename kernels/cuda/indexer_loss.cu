// A block takes a query, a thread a key of its list; scores are those of index_score.h.
#include <algorithm>

#include "kernels/cuda/double_sums.cuh"
#include "kernels/cuda/key_tile.cuh"
#include "kernels/cuda/readers.cuh"
#include "kernels/cuda/scratch.h"
#include "kernels/index_score.h"
#include "kernels/indexer_loss.h"

namespace lt2::cuda {
namespace {

constexpr int kWarps = kTileKeys / 32;

template <class T>
struct Loss {
  const T *a_NJC, *b_NC, *w_NJ, *q_NHD, *k_NGD;
  const float *lse_NH, *p_NS;          // p: given, or null
  const int32_t *keys_NS, *positions;  // positions: of the M queries
  int64_t M, N, query_begin, J, C, H, D, G, S;
  float scale;
  double weight;

  int64_t SharedBytes() const { return gpu::IndexerLossBytes(J, C, H, H / G, D); }
  // Of a block, in memory: scores and targets in double, then products [J, S] where gradients want
  // them.
  __host__ __device__ int64_t RowBytes(bool products) const {
    return S * 2 * static_cast<int64_t>(sizeof(double)) +
           (products ? (J * S + 1) / 2 * 2 * static_cast<int64_t>(sizeof(float)) : 0);
  }
};

template <class T>
struct Gradients {
  const double* dloss;
  T *da_NJC, *dw_NJ;  // null where not wanted
  bool accumulate_da, accumulate_dw;
  float* dscore_NS;
};

// fn combines two; every thread of the block holds the result, always in the same order.
template <class Fn>
__device__ double OfBlock(double x, const Fn& fn) {
  __shared__ double of_warp[kWarps];
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) x = fn(x, __shfl_xor_sync(~0u, x, lane));
  __syncthreads();  // an earlier call's results have been read
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = x;
  __syncthreads();
  double all = of_warp[0];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) all = fn(all, of_warp[w]);
  return all;
}
__device__ double SumOfBlock(double x) {
  return OfBlock(x, [](double a, double b) { return a + b; });
}

// One query's list, its target p and the logarithm of its prediction.
template <class T>
struct Row {
  int64_t query, begin, count;
  const int32_t* keys;
  double *log_prediction, *p;
  float* r_JS;  // may be null

  __device__ int64_t key(int64_t i) const { return begin + keys[i]; }  // row of b and k
};

// Keys before the first -1.
template <class T>
__device__ int64_t CountKeys(const Loss<T>& in, const int32_t* keys) {
  __shared__ int first;
  __syncthreads();
  if (threadIdx.x == 0) first = static_cast<int>(in.S);
  __syncthreads();
  for (int i = threadIdx.x; i < in.S; i += kTileKeys) {
    if (keys[i] < 0) atomicMin(&first, i);
  }
  __syncthreads();
  return first;
}

// Scores and unnormalised targets of the keys.
template <class T>
__device__ void ScoreKeys(const Loss<T>& in, const Row<T>& row) {
  const int64_t share = in.H / in.G, lanes = PadHeads(in.J);
  double* a_CJ = reinterpret_cast<double*>(DynamicShared());
  double* w_J = a_CJ + in.C * lanes;
  float* q_HD = reinterpret_cast<float*>(w_J + lanes);
  float* tile = q_HD + in.H * in.D;
  // Where keys come in panels: the thread's products so far, of the heads of a key.
  float* sums = tile + max(in.C, min(in.D, gpu::kLossPanel)) * kTileStride + threadIdx.x;
  LoadHeads(in.a_NJC + row.query * in.J * in.C, in.J, in.C, 1, a_CJ);
  for (int64_t j = threadIdx.x; j < in.J; j += kTileKeys) {
    w_J[j] = Get(in.w_NJ, row.query * in.J + j);
  }
  for (int64_t e = threadIdx.x; e < in.H * in.D; e += kTileKeys) {
    q_HD[e] = in.scale * Get(in.q_NHD, row.query * in.H * in.D + e);
  }
  for (int64_t first = 0; first < row.count; first += kTileKeys) {
    const int64_t keys = min(int64_t{kTileKeys}, row.count - first), i = first + threadIdx.x;
    const bool inside = threadIdx.x < keys;
    const auto row_of = [&](int64_t of_tile) { return row.key(first + of_tile); };
    LoadTile(in.b_NC, in.C, in.C, keys, row_of, tile);
    if (inside) {
      double score = 0;
      ForEachDot(tile, in.C, a_CJ, in.J, [&](int64_t j, double dot) {
        AddIndexTerm<1>(w_J[j], true, &dot, &score);
        if (row.r_JS != nullptr) row.r_JS[j * in.S + i] = static_cast<float>(dot);
      });
      row.log_prediction[i] = score;
    }
    if (in.p_NS != nullptr) {
      if (inside) row.p[i] = in.p_NS[row.query * in.S + i];
      continue;
    }
    double p = 0;
    for (int64_t g = 0; g < in.G; ++g) {
      for (int64_t begin = 0; begin < in.D; begin += gpu::kLossPanel) {
        const int64_t width = min(gpu::kLossPanel, in.D - begin);
        LoadTile(in.k_NGD + g * in.D + begin, in.G * in.D, width, keys, row_of, tile);
        for (int64_t n = 0; inside && n < share; ++n) {
          const int64_t h = g * share + n;
          float s = begin == 0 ? 0 : sums[n * kTileKeys];
#pragma unroll 8
          for (int64_t d = 0; d < width; ++d) {
            s += q_HD[h * in.D + begin + d] * tile[d * kTileStride + threadIdx.x];
          }
          if (begin + width < in.D) {
            sums[n * kTileKeys] = s;
          } else {
            p += expf(s - in.lse_NH[row.query * in.H + h]);
          }
        }
      }
    }
    if (inside) row.p[i] = p;
  }
}

template <class T>
__device__ Row<T> LoadRow(const Loss<T>& in, int64_t query, unsigned char* memory, bool products) {
  Row<T> row;
  row.query = query;
  row.begin = in.query_begin + query - in.positions[query];
  row.keys = in.keys_NS + query * in.S;
  row.log_prediction = reinterpret_cast<double*>(memory + blockIdx.x * in.RowBytes(products));
  row.p = row.log_prediction + in.S;
  row.r_JS = products ? reinterpret_cast<float*>(row.p + in.S) : nullptr;
  row.count = CountKeys(in, row.keys);  // the query before has been done
  ScoreKeys(in, row);
  __syncthreads();
  double most = -INFINITY, sum = 0, sum_p = 0;
  for (int64_t i = threadIdx.x; i < row.count; i += kTileKeys) {
    most = fmax(most, row.log_prediction[i]);
    sum_p += row.p[i];
  }
  most = OfBlock(most, [](double a, double b) { return fmax(a, b); });
  sum_p = fmax(SumOfBlock(sum_p), 1e-10);
  for (int64_t i = threadIdx.x; i < row.count; i += kTileKeys) {
    sum += exp(row.log_prediction[i] - most);
  }
  const double lse = most + log(SumOfBlock(sum));
  for (int64_t i = threadIdx.x; i < row.count; i += kTileKeys) {
    row.log_prediction[i] -= lse;
    row.p[i] /= sum_p;
  }
  __syncthreads();
  return row;
}

template <class T>
__global__ void __launch_bounds__(kTileKeys)
    WriteTargets(Loss<T> in, unsigned char* memory, float* p_NS) {
  for (int64_t query = blockIdx.x; query < in.M; query += gridDim.x) {
    const Row<T> row = LoadRow(in, query, memory, false);
    float* p = p_NS + query * in.S;
    for (int64_t i = threadIdx.x; i < in.S; i += kTileKeys) {
      p[i] = i < row.count ? static_cast<float>(row.p[i]) : 0;
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kTileKeys)
    Forward(Loss<T> in, unsigned char* memory, double* kl_N) {
  for (int64_t query = blockIdx.x; query < in.M; query += gridDim.x) {
    const Row<T> row = LoadRow(in, query, memory, false);
    double kl = 0;
    for (int64_t i = threadIdx.x; i < row.count; i += kTileKeys) {
      if (row.p[i] > 0) kl += row.p[i] * (log(row.p[i]) - row.log_prediction[i]);
    }
    kl = SumOfBlock(kl);
    if (threadIdx.x == 0) kl_N[query] = kl;
  }
}

// dI of a query and the gradients of what is its own, da and dw.
template <class T>
__global__ void __launch_bounds__(kTileKeys, 4)
    BackwardQueries(Loss<T> in, Gradients<T> to, unsigned char* memory) {
  __shared__ float of_warp[kWarps][32];
  const double factor = *to.dloss * in.weight;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int64_t query = blockIdx.x; query < in.M; query += gridDim.x) {
    const Row<T> row = LoadRow(in, query, memory, true);
    float* dscore = to.dscore_NS + query * in.S;
    for (int64_t i = threadIdx.x; i < in.S; i += kTileKeys) {
      const bool listed = i < row.count;
      dscore[i] = listed ? static_cast<float>(factor * (exp(row.log_prediction[i]) - row.p[i])) : 0;
    }
    __syncthreads();
    for (int64_t j = warp; to.dw_NJ != nullptr && j < in.J; j += kWarps) {
      double dw = 0;
      for (int64_t i = lane; i < row.count; i += 32) {
        dw += double{dscore[i]} * fmaxf(row.r_JS[j * in.S + i], 0);
      }
#pragma unroll
      for (int other = 16; other > 0; other /= 2) dw += __shfl_xor_sync(~0u, dw, other);
      if (lane == 0) {
        PutOrAdd(to.dw_NJ, query * in.J + j, static_cast<float>(dw), to.accumulate_dw);
      }
    }
    if (to.da_NJC == nullptr) continue;
    // Each warp takes some of the keys, a lane a channel.
    for (int64_t j = 0; j < in.J; ++j) {
      const float w = Get(in.w_NJ, query * in.J + j), *r = row.r_JS + j * in.S;
      for (int64_t first = 0; first < in.C; first += 32) {
        const int64_t c = first + lane;
        float sum = 0;
#pragma unroll 4
        for (int64_t i = warp; i < row.count; i += kWarps) {
          const float dr = r[i] > 0 ? dscore[i] * w : 0;
          if (c < in.C) sum += dr * Get(in.b_NC, row.key(i) * in.C + c);
        }
        of_warp[warp][lane] = sum;
        __syncthreads();
        if (warp == 0 && c < in.C) {
          for (int other = 1; other < kWarps; ++other) sum += of_warp[other][lane];
          PutOrAdd(to.da_NJC, (query * in.J + j) * in.C + c, sum, to.accumulate_da);
        }
        __syncthreads();
      }
    }
  }
}

// The key that a list's entry names.
struct NamedKey {
  const int32_t *keys_NS, *positions;
  int64_t query_begin, S;

  __device__ int64_t operator()(int64_t query, int64_t i) const {
    const int32_t key = keys_NS[query * S + i];
    return key >= 0 ? query_begin + query - positions[query] + key : -1;
  }
};

// db of key blockIdx.x from all that list it; each warp takes some of them, a lane some channels.
template <class T>
__global__ void __launch_bounds__(kTileKeys)
    BackwardKeys(Loss<T> in, ReaderLists readers, const float* dscore_NS, T* db_NC, bool add) {
  const int64_t key = blockIdx.x;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float* sums = reinterpret_cast<float*>(DynamicShared());  // [kWarps, C]
  for (int64_t c = threadIdx.x; c < kWarps * in.C; c += kTileKeys) sums[c] = 0;
  __syncthreads();
  const T* b = in.b_NC + key * in.C;
  for (int64_t e = readers.offsets[key] + warp; e < readers.offsets[key + 1]; e += kWarps) {
    const int64_t entry = readers.entries[e], query = entry / in.S;
    const float dscore = dscore_NS[entry];
    for (int64_t j = 0; j < in.J; ++j) {
      const T* a = in.a_NJC + (query * in.J + j) * in.C;
      double r = 0;
      for (int64_t c = lane; c < in.C; c += 32) r += double{Get(a, c)} * double{Get(b, c)};
#pragma unroll
      for (int other = 16; other > 0; other /= 2) r += __shfl_xor_sync(~0u, r, other);
      if (r <= 0) continue;
      const float dr = dscore * Get(in.w_NJ, query * in.J + j);
      for (int64_t c = lane; c < in.C; c += 32) sums[warp * in.C + c] += dr * Get(a, c);
    }
  }
  __syncthreads();
  for (int64_t c = threadIdx.x; c < in.C; c += kTileKeys) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += sums[w * in.C + c];
    PutOrAdd(db_NC, key * in.C + c, sum, add);
  }
}

template <class T, class Args>
Loss<T> LossOf(const Args& args) {
  const IndexerTarget& target = args.target;
  const int64_t query_begin = target.documents.query_begin();
  return {.a_NJC = Data<T>(args.a_NJC),
          .b_NC = Data<T>(args.b_NC),
          .w_NJ = Data<T>(args.w_NJ),
          .q_NHD = Data<T>(target.q_NHD),
          .k_NGD = Data<T>(target.k_NGD),
          .lse_NH = Data<float>(target.lse_NH),
          .p_NS = DataOrNull<float>(target.p_MS),
          .keys_NS = Data<int32_t>(target.keys_NS),
          .positions = Data<int32_t>(target.documents.positions()) + query_begin,
          .M = args.a_NJC.dim(0),
          .N = args.b_NC.dim(0),
          .query_begin = query_begin,
          .J = args.a_NJC.dim(1),
          .C = args.a_NJC.dim(2),
          .H = target.q_NHD.dim(1),
          .D = target.q_NHD.dim(2),
          .G = target.k_NGD.dim(1),
          .S = target.keys_NS.dim(1),
          .scale = static_cast<float>(target.scale),
          .weight = args.weight};
}

// Blocks enough to fill the GPU, but 128 MiB of workspace at most.
int64_t BlocksOf(int64_t queries, int64_t row_bytes) {
  return std::clamp<int64_t>(std::min(queries, (int64_t{128} << 20) / row_bytes), 1, 528);
}

template <class T>
void RunForward(const Stream& stream, const IndexerLossForwardArgs& args) {
  const char* name = "indexer_loss";
  const Loss<T> in = LossOf<T>(args);
  double* kl_N = DataOrNull<double>(args.kl_N);
  if (in.M > 0) {
    const int64_t blocks = BlocksOf(in.M, in.RowBytes(false));
    auto* memory = ScratchFor<unsigned char>(stream, blocks * in.RowBytes(false));
    const auto launch = [&](auto kernel, auto* to) {
      AllowTile(name, kernel, in.SharedBytes());
      kernel<<<blocks, kTileKeys, in.SharedBytes(), Handle(stream)>>>(in, memory, to);
      CheckLaunch(name);
    };
    if (args.p_MS.defined()) return launch(WriteTargets<T>, Data<float>(args.p_MS));
    launch(Forward<T>, kl_N);
  }
  if (args.p_MS.defined()) return;
  SumParts<<<1, 256, 0, Handle(stream)>>>(in.M, kl_N, args.weight, false, Data<double>(args.loss));
  CheckLaunch(name);
}

template <class T>
void RunBackward(const Stream& stream, const IndexerLossBackwardArgs& args) {
  const char* name = "indexer_loss backward";
  const Loss<T> in = LossOf<T>(args);
  if (in.M == 0) return;
  float* dscore_NS = Data<float>(args.dscore_NS);
  const int64_t blocks = BlocksOf(in.M, in.RowBytes(true));
  auto* memory = ScratchFor<unsigned char>(stream, blocks * in.RowBytes(true));
  AllowTile(name, BackwardQueries<T>, in.SharedBytes());
  BackwardQueries<<<blocks, kTileKeys, in.SharedBytes(), Handle(stream)>>>(
      in,
      Gradients<T>{Data<double>(args.dloss), DataOrNull<T>(args.da_NJC), DataOrNull<T>(args.dw_NJ),
                   args.accumulate_da, args.accumulate_dw, dscore_NS},
      memory);
  CheckLaunch(name);
  if (!args.db_NC.defined()) return;
  int32_t* offsets = Data<int32_t>(args.readers);
  const ReaderLists readers{offsets, offsets + in.N + 1};
  SortReaders(stream, name, in.M, in.S, in.N,
              NamedKey{in.keys_NS, in.positions, in.query_begin, in.S},
              ScratchFor<int32_t>(stream, ReaderRuns(in.M, in.N) * in.N), readers);
  BackwardKeys<<<in.N, kTileKeys, kWarps * in.C * sizeof(float), Handle(stream)>>>(
      in, readers, dscore_NS, Data<T>(args.db_NC), args.accumulate_db);
  CheckLaunch(name);
}

}  // namespace

void IndexerLossForward(Stream& stream, const IndexerLossForwardArgs& args) {
  DispatchType("indexer_loss", args.a_NJC.dtype(), [&]<class T>() { RunForward<T>(stream, args); });
}

void IndexerLossBackward(Stream& stream, const IndexerLossBackwardArgs& args) {
  DispatchType("indexer_loss", args.a_NJC.dtype(),
               [&]<class T>() { RunBackward<T>(stream, args); });
}

}  // namespace lt2::cuda
