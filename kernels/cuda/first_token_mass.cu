#include <algorithm>

#include "kernels/cuda/double_sums.cuh"
#include "kernels/cuda/scratch.h"
#include "kernels/first_token_mass.h"

namespace lt2::cuda {
namespace {

template <class T>
struct MassData {
  int64_t queries, query_begin, heads, key_heads, width, window;
  float scale;
  const T *q_NHD, *k_NGD;
  const float* lse_NH;
  const int32_t* positions_N;  // in whole documents
};

// A warp takes a query and head at a time; of_block [2, gridDim.x]: probabilities, then terms.
template <class T>
__global__ void __launch_bounds__(256) Masses(MassData<T> data, double* of_block) {
  double mass = 0, terms = 0;  // lane 0's
  const int64_t pairs = data.queries * data.heads, step = int64_t{gridDim.x} * 8;
  for (int64_t i = int64_t{blockIdx.x} * 8 + threadIdx.x / 32; i < pairs; i += step) {
    const int64_t token = data.query_begin + i / data.heads, head = i % data.heads;
    const int64_t position = data.positions_N[token];
    if (position == 0) continue;
    if (threadIdx.x % 32 == 0) terms += 1;
    if (position > token || (data.window > 0 && position >= data.window)) continue;
    const int64_t key_head = head / (data.heads / data.key_heads);
    const T* q = data.q_NHD + i * data.width;
    const T* k = data.k_NGD + ((token - position) * data.key_heads + key_head) * data.width;
    float score = 0;
    for (int64_t d = threadIdx.x % 32; d < data.width; d += 32) score += Get(q, d) * Get(k, d);
    score = WarpSum(score);
    if (threadIdx.x % 32 == 0) mass += expf(data.scale * score - data.lse_NH[i]);
  }
  mass = BlockSumF64(mass);
  terms = BlockSumF64(terms);
  if (threadIdx.x != 0) return;
  of_block[blockIdx.x] = mass;
  of_block[gridDim.x + blockIdx.x] = terms;
}

template <class T>
void Run(const Stream& stream, const FirstTokenMassArgs& args) {
  const MassData<T> data{.queries = args.q_NHD.dim(0),
                         .query_begin = args.documents.query_begin(),
                         .heads = args.q_NHD.dim(1),
                         .key_heads = args.k_NGD.dim(1),
                         .width = args.q_NHD.dim(2),
                         .window = args.options.window,
                         .scale = static_cast<float>(args.options.scale),
                         .q_NHD = Data<T>(args.q_NHD),
                         .k_NGD = Data<T>(args.k_NGD),
                         .lse_NH = Data<float>(args.lse_NH),
                         .positions_N = Data<int32_t>(args.documents.whole_positions())};
  const int64_t blocks = std::clamp<int64_t>(Blocks(data.queries * data.heads, 8), 1, 1056);
  double* of_block = ScratchFor<double>(stream, 2 * blocks);
  Masses<<<blocks, 256, 0, Handle(stream)>>>(data, of_block);
  CheckLaunch("first_token_mass");
  SumParts<<<2, 256, 0, Handle(stream)>>>(blocks, of_block, 1.0, /*add=*/true,
                                          Data<double>(args.mass));
  CheckLaunch("first_token_mass");
}

}  // namespace

void FirstTokenMass(Stream& stream, const FirstTokenMassArgs& args) {
  DispatchType("first_token_mass", args.q_NHD.dtype(), [&]<class T>() { Run<T>(stream, args); });
}

}  // namespace lt2::cuda
