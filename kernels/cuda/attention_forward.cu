// Dao: "FlashAttention-2" (2023): queries stay, keys and values stream, softmax online.
#include "kernels/cuda/attention_softmax.cuh"
#include "kernels/cuda/attention_tensor_core.h"

namespace lt2::cuda {
namespace {

template <int kWidth>
struct TileFor;
template <>
struct TileFor<32> : AttentionTile<32, 2, 4, 64, 3> {};
template <>
struct TileFor<64> : AttentionTile<64, 2, 4, 64, 2> {};
template <>
struct TileFor<96> : AttentionTile<96, 2, 4, 64, 2> {};
template <>
struct TileFor<128> : AttentionTile<128, 2, 4, 48, 2> {};
template <>
struct TileFor<192> : AttentionTile<192, 1, 8, 64, 1> {};
template <>
struct TileFor<256> : AttentionTile<256, 1, 8, 64, 1> {};

template <class Tile>
constexpr int kSharedBytes = Tile::kRowBytes + 4 * Tile::kStreamBytes;

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    AttentionForwardKernel(const __grid_constant__ Forward args) {
  const AttentionProblem& problem = args.problem;
  // Late tiles see the most keys: they begin first.
  const auto rows = QueriesOfBlock<Tile::kRows>(problem, gridDim.y - 1 - blockIdx.y);
  if (!rows.any) return;
  const int head = blockIdx.x, group = head / (problem.heads / problem.groups);
  const uint32_t q = SharedAddress(DynamicShared()), kv = q + Tile::kRowBytes;

  int key = max(rows.begin, rows.first - problem.window + 1);
  const int key_end = rows.last + 1;
  const auto copy_keys = [&](int from, int stage) {
    const uint32_t k = kv + 2 * stage * Tile::kStreamBytes;
    CopyRows<Tile, Tile::kStream>(k, args.k, group, from, key_end);
    CopyRows<Tile, Tile::kStream>(k + Tile::kStreamBytes, args.v, group, from, key_end);
  };
  CopyRows<Tile, Tile::kRows>(q, args.q, head, rows.first, key_end);
  copy_keys(key, 0);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int first = rows.first + warp * Tile::kWarpRows, last = first + Tile::kWarpRows - 1;
  const int row = first + lane / 4;
  const float scale = problem.scale * kLog2E;
  const uint32_t q_lane = LaneOfRows<Tile>(q) + BlockOffset<Tile>(warp * Tile::kWarpRows, 0);
  RowSums<Tile> o;
  SetZero<Tile>(o);
  OfRows<Tile> m = Everywhere<Tile>(kMasked), l = Everywhere<Tile>(0);
  for (int stage = 0; key < key_end; key += Tile::kStream, stage ^= 1) {
    WaitForCopies();
    __syncthreads();  // this tile is there, and nobody reads the other one any more
    if (key + Tile::kStream < key_end) copy_keys(key + Tile::kStream, stage ^ 1);
    const int key_last = key + Tile::kStream - 1;
    if (key > last || key_last <= first - problem.window) continue;  // invisible to this warp
    const uint32_t k = kv + 2 * stage * Tile::kStreamBytes;
    Scores<Tile> s;
    ProductOfRows<Tile>(s, q_lane, LaneOfColumns<Tile>(k));
    if (key_last > first || key <= last - problem.window) Mask<Tile>(s, key, row, problem.window);
    OfRows<Tile> shrink;
    if (Softmax<Tile>(s, scale, m, l, shrink)) Rescale<Tile>(o, shrink);
    AddProduct<Tile>(o, s, LaneOfRows<Tile>(k + Tile::kStreamBytes));
  }

  FinishRows<Tile>(args, head, row - problem.query_begin, key_end - problem.query_begin, m, l, o);
}

}  // namespace

void TensorCoreAttentionForward(const Stream& stream, const AttentionForwardArgs& args) {
  const Forward forward = ForwardOf(args);
  const dim3 grid(forward.problem.heads, args.documents.query_chunk_capacity());
  DispatchWidth(std::max(forward.q.size, forward.v.size), [&]<int kWidth>() {
    using Tile = TileFor<kWidth>;
    AllowShared(AttentionForwardKernel<Tile>, kSharedBytes<Tile>);
    AttentionForwardKernel<Tile>
        <<<grid, Tile::kThreads, kSharedBytes<Tile>, Handle(stream)>>>(forward);
    CheckLaunch("attention");
  });
}

}  // namespace lt2::cuda
