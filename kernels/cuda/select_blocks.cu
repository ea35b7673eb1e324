#include <algorithm>

#include "kernels/choose_blocks.h"
#include "kernels/cuda/block_rows.cuh"
#include "kernels/cuda/key_tile.cuh"
#include "kernels/cuda/scratch.h"
#include "kernels/cuda/select_top.cuh"

namespace lt2::cuda {
namespace {

template <class T>
struct Chooser {
  const T *q_NHD, *k;        // means [rows, G, D]
  const int32_t* positions;  // of tokens; or null:
  const int32_t* lengths;    // of the sequences whose means are k [queries, R, G, D]
  int64_t begin, end;        // queries: tokens, or sequences
  int64_t G, D, heads, R;    // heads: of a group
  SelectBlocksOptions options;
  int32_t* blocks_NGS;

  __device__ int64_t Position(int64_t query) const {
    if (positions != nullptr) return positions[query];
    if (lengths[query] < 1 || lengths[query] / options.block > R) __trap();
    return lengths[query] - 1;
  }
  __device__ int64_t FirstRow(int64_t query, int64_t position) const {
    return positions != nullptr ? BlockRow(query - position, options.block) : query * R;
  }
  int64_t SharedBytes() const { return gpu::SelectBlocksBytes(heads, D); }
};

// score_c for c < current, as BlockScores makes it. p [visible, PadHeads(heads)] is workspace in
// global memory; `most` and `sum` [heads] in shared memory.
template <class T>
__device__ void Score(const Chooser<T>& in, const double* q_DH, const T* k, int64_t position,
                      float* tile, double* most, double* sum, double* p, double* score) {
  const int64_t block = in.options.block, lanes = PadHeads(in.heads);
  const int64_t current = position / block, visible = (position + 1) / block;
  for (int64_t begin = 0; begin < visible; begin += kTileKeys) {
    const int64_t keys = min(int64_t{kTileKeys}, visible - begin);
    LoadTile(
        k + begin * in.G * in.D, in.G * in.D, in.D, keys, [](int64_t i) { return i; }, tile);
    if (threadIdx.x >= keys) continue;
    ForEachDot(tile, in.D, q_DH, in.heads,
               [&](int64_t h, double dot) { p[(begin + threadIdx.x) * lanes + h] = dot; });
  }
  __syncthreads();
  for (int64_t h = threadIdx.x; h < in.heads; h += kTileKeys) {
    double largest = -INFINITY;
#pragma unroll 8
    for (int64_t c = 0; c < visible; ++c) {
      const double s = p[c * lanes + h];
      largest = s > largest ? s : largest;
    }
    most[h] = largest;
  }
  __syncthreads();
  for (int64_t e = threadIdx.x; e < visible * lanes; e += kTileKeys) {
    const int64_t h = e % lanes;
    if (h < in.heads) p[e] = ExpOfNegative(p[e] - most[h]);
  }
  __syncthreads();
  for (int64_t h = threadIdx.x; h < in.heads; h += kTileKeys) {
    double total = 0;  // in the order of blocks
#pragma unroll 8
    for (int64_t c = 0; c < visible; ++c) total += p[c * lanes + h];
    sum[h] = total;
  }
  __syncthreads();
  for (int64_t c = threadIdx.x; c < current; c += kTileKeys) {
    double total = 0;
    for (int64_t h = 0; h < in.heads; ++h) total += p[c * lanes + h] / sum[h];
    score[c] = total;
  }
}

// A block takes every gridDim.x-th (query, group); memory [blocks, most blocks, PadHeads(heads) +
// 1].
template <class T>
__global__ void __launch_bounds__(kTileKeys) Choose(Chooser<T> in, int64_t most, double* memory) {
  const int64_t lanes = PadHeads(in.heads), selected = in.options.selected;
  double* q_DH = reinterpret_cast<double*>(DynamicShared());
  double *largest = q_DH + in.D * lanes, *sum = largest + lanes;
  float* tile = reinterpret_cast<float*>(sum + lanes);
  double *p = memory + blockIdx.x * most * (lanes + 1), *score = p + most * lanes;
  for (int64_t row = in.begin * in.G + blockIdx.x; row < in.end * in.G; row += gridDim.x) {
    const int64_t query = row / in.G, g = row % in.G, position = in.Position(query);
    const int64_t current = position / in.options.block;
    __syncthreads();  // the row before has been done
    if (current + 1 > selected) {
      LoadHeads(in.q_NHD + row * in.heads * in.D, in.heads, in.D, in.options.scale, q_DH);
      Score(in, q_DH, in.k + (in.FirstRow(query, position) * in.G + g) * in.D, position, tile,
            largest, sum, p, score);
      for (int64_t c = threadIdx.x; c <= current; c += kTileKeys) {
        // NaN has no place in an order.
        const bool always = c == 0 || c + 1 >= current;
        score[c] = always ? INFINITY : score[c] >= 0 ? score[c] : -1;
      }
      __syncthreads();
    }
    SelectTop<kTileKeys>(score, current + 1, selected, in.blocks_NGS + row * selected);
  }
}

// `tokens`: as many as a query sees.
template <class T>
void Run(const Stream& stream, const char* name, const Chooser<T>& in, int64_t tokens) {
  const int64_t rows = (in.end - in.begin) * in.G, blocks = std::min<int64_t>(rows, 1056);
  if (rows == 0) return;
  const int64_t most = tokens / in.options.block + 1;
  double* memory = ScratchFor<double>(stream, blocks * most * (PadHeads(in.heads) + 1));
  AllowTile(name, Choose<T>, in.SharedBytes());
  Choose<<<blocks, kTileKeys, in.SharedBytes(), Handle(stream)>>>(in, most, memory);
  CheckLaunch(name);
}

}  // namespace

void SelectBlocksForward(Stream& stream, const SelectBlocksForwardArgs& args) {
  const int64_t begin = args.documents.query_begin(), end = args.documents.query_end();
  const int64_t G = args.k_CGD.dim(1), H = args.q_NHD.dim(1), D = args.q_NHD.dim(2);
  DispatchType("select_blocks", args.q_NHD.dtype(), [&]<class T>() {
    const Chooser<T> in{
        .q_NHD = Data<T>(args.q_NHD) - begin * H * D,
        .k = Data<T>(args.k_CGD),
        .positions = Data<int32_t>(args.documents.positions()),
        .begin = begin,
        .end = end,
        .G = G,
        .D = D,
        .heads = H / G,
        .options = args.options,
        .blocks_NGS = Data<int32_t>(args.blocks_NGS) - begin * G * args.options.selected};
    Run(stream, "select_blocks", in, end);
  });
}

void SelectBlocksStep(Stream& stream, const SelectBlocksStepArgs& args) {
  const int64_t R = args.k_BRGD.dim(1), G = args.k_BRGD.dim(2);
  DispatchType("select_blocks_step", args.q_BHD.dtype(), [&]<class T>() {
    const Chooser<T> in{.q_NHD = Data<T>(args.q_BHD),
                        .k = Data<T>(args.k_BRGD),
                        .lengths = Data<int32_t>(args.lengths_B),
                        .begin = 0,
                        .end = args.q_BHD.dim(0),
                        .G = G,
                        .D = args.q_BHD.dim(2),
                        .heads = args.q_BHD.dim(1) / G,
                        .R = R,
                        .options = args.options,
                        .blocks_NGS = Data<int32_t>(args.blocks_BGS)};
    Run(stream, "select_blocks_step", in, (R + 1) * args.options.block);
  });
}

}  // namespace lt2::cuda
