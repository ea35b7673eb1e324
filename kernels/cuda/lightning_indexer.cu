#include <algorithm>

#include "kernels/cuda/key_tile.cuh"
#include "kernels/cuda/scratch.h"
#include "kernels/cuda/select_top.cuh"
#include "kernels/index_score.h"
#include "kernels/lightning_indexer.h"

namespace lt2::cuda {
namespace {

template <class T>
struct Indexer {
  const T *q_NHD, *k, *w_NH;  // w may be null
  const int32_t* positions;   // of queries; or null:
  const int32_t* lengths;     // of the caches k [queries, capacity, D]
  int64_t queries, query_begin, H, D, S, capacity;
  int32_t* keys_NS;

  // The keys that a query sees: `count` rows from `first` on.
  __device__ int64_t First(int64_t query) const {
    return positions != nullptr ? query_begin + query - positions[query] : query * capacity;
  }
  __device__ int64_t Count(int64_t query) const {
    if (positions != nullptr) return positions[query] + 1;
    if (lengths[query] < 0 || lengths[query] > capacity) __trap();
    return lengths[query];
  }
  int64_t SharedBytes() const { return gpu::IndexerBytes(H, D); }
};

// A block takes every gridDim.x-th query; scores [blocks, most keys].
template <class T>
__global__ void __launch_bounds__(kTileKeys) Choose(Indexer<T> in, int64_t most, double* scores) {
  const int64_t lanes = PadHeads(in.H);
  double* q_DH = reinterpret_cast<double*>(DynamicShared());
  double* w_H = q_DH + in.D * lanes;
  float* tile = reinterpret_cast<float*>(w_H + lanes);
  double* score = scores + blockIdx.x * most;
  const bool cut = in.w_NH != nullptr;
  for (int64_t query = blockIdx.x; query < in.queries; query += gridDim.x) {
    const int64_t first = in.First(query), count = in.Count(query);
    __syncthreads();  // the query before has been done
    if (count > in.S) {
      LoadHeads(in.q_NHD + query * in.H * in.D, in.H, in.D, 1, q_DH);
      for (int64_t h = threadIdx.x; h < in.H; h += kTileKeys) {
        w_H[h] = cut ? double{Get(in.w_NH, query * in.H + h)} : 1 / static_cast<double>(in.H);
      }
      for (int64_t begin = 0; begin < count; begin += kTileKeys) {
        const int64_t keys = min(int64_t{kTileKeys}, count - begin);
        LoadTile(
            in.k + (first + begin) * in.D, in.D, in.D, keys, [](int64_t i) { return i; }, tile);
        if (threadIdx.x >= keys) continue;
        double sum = 0;
        ForEachDot(tile, in.D, q_DH, in.H,
                   [&](int64_t h, double dot) { AddIndexTerm<1>(w_H[h], cut, &dot, &sum); });
        score[begin + threadIdx.x] = sum;
      }
      __syncthreads();
    }
    SelectTop<kTileKeys>(score, count, in.S, in.keys_NS + query * in.S);
  }
}

template <class T>
void Run(const Stream& stream, const char* name, const Indexer<T>& in, int64_t most) {
  if (in.queries == 0) return;
  const int64_t blocks = std::min<int64_t>(in.queries, 528);
  double* scores = ScratchFor<double>(stream, blocks * most);
  AllowTile(name, Choose<T>, in.SharedBytes());
  Choose<<<blocks, kTileKeys, in.SharedBytes(), Handle(stream)>>>(in, most, scores);
  CheckLaunch(name);
}

}  // namespace

void LightningIndexer(Stream& stream, const LightningIndexerArgs& args) {
  const int64_t begin = args.documents.query_begin();
  DispatchType("lightning_indexer", args.q_NHD.dtype(), [&]<class T>() {
    const Indexer<T> in{.q_NHD = Data<T>(args.q_NHD),
                        .k = Data<T>(args.k_ND),
                        .w_NH = DataOrNull<T>(args.w_NH),
                        .positions = Data<int32_t>(args.documents.positions()) + begin,
                        .queries = args.q_NHD.dim(0),
                        .query_begin = begin,
                        .H = args.q_NHD.dim(1),
                        .D = args.q_NHD.dim(2),
                        .S = args.keys_NS.dim(1),
                        .keys_NS = Data<int32_t>(args.keys_NS)};
    Run(stream, "lightning_indexer", in, args.documents.query_end());
  });
}

void LightningIndexerStep(Stream& stream, const LightningIndexerStepArgs& args) {
  const int64_t capacity = args.k_BCD.dim(1);
  DispatchType("lightning_indexer_step", args.q_BHD.dtype(), [&]<class T>() {
    const Indexer<T> in{.q_NHD = Data<T>(args.q_BHD),
                        .k = Data<T>(args.k_BCD),
                        .w_NH = DataOrNull<T>(args.w_BH),
                        .lengths = Data<int32_t>(args.lengths_B),
                        .queries = args.q_BHD.dim(0),
                        .H = args.q_BHD.dim(1),
                        .D = args.q_BHD.dim(2),
                        .S = args.keys_BS.dim(1),
                        .capacity = capacity,
                        .keys_NS = Data<int32_t>(args.keys_BS)};
    Run(stream, "lightning_indexer_step", in, capacity);
  });
}

}  // namespace lt2::cuda
